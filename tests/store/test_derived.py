"""Derived layouts: made once, found by their inputs, never half-made, never removed while used."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import outcrop
from outcrop.errors import OptionError, StoreError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.progress import Progress
from outcrop.store.derived import find_garbage, remove
from outcrop.store.locks import DirectoryLock
from outcrop.store.store import GraphStore
from outcrop.store.workdir import WorkDirectory


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    synthesise(tmp_path / "s", SynthOptions(nodes=50, edges=100, dim=3))
    return outcrop.open(tmp_path / "s")


def write(text: str) -> object:
    return lambda folder: (folder / "data").write_text(text)


def names(store: GraphStore) -> list[str]:
    return sorted(os.listdir(store.path / "derived"))


def test_a_layout_is_made_once_and_found_again(store: GraphStore) -> None:
    made = 0

    def build(folder: Path) -> None:
        nonlocal made
        made += 1
        (folder / "data").write_text("content")

    for _ in range(2):
        with store.derived.get_or_build("cache", {"size": 5}, build) as layout:
            assert (layout.path / "data").read_text() == "content"
            assert layout.record["inputs"] == {"size": 5}
    assert made == 1
    assert store.derived.find("cache", {"size": 6}) is None
    with store.derived.get_or_build("cache", {"size": 6}, build) as other:
        assert other.path != layout.path
    assert made == 2
    with pytest.raises(OptionError, match="plain word"):
        store.derived.find("../escape", {})


def test_what_a_process_used_is_known_with_its_size_and_what_making_it_took(
    store: GraphStore,
) -> None:
    def build(folder: Path) -> None:
        (folder / "data").write_bytes(bytes(100_000))
        time.sleep(0.05)

    store.derived.get_or_build("cache", {}, build).close()
    with GraphStore(store.path) as again:
        assert again.derived.used() == [] and again.derived.used_bytes() == 0
        again.derived.get_or_build("cache", {}, build).close()
        (found,) = again.derived.used()
    (made,) = store.derived.used()
    assert made["made"] and not found["made"] and made["name"].startswith("cache-")
    assert found["seconds"] == made["seconds"] >= 0.05
    assert found["bytes"] >= 100_000 and store.derived.used_bytes() == found["bytes"]


def test_scratch_counts_as_long_as_it_is_there(store: GraphStore) -> None:
    with store.derived.scratch() as scratch:
        (scratch.path / "spill").write_bytes(bytes(50_000))
        assert store.derived.used_bytes() >= 50_000
    assert store.derived.used_bytes() == 0 and store.derived.used() == []


def test_the_key_depends_on_the_content_of_the_store(store: GraphStore, tmp_path: Path) -> None:
    synthesise(tmp_path / "same", SynthOptions(nodes=50, edges=100, dim=3))
    synthesise(tmp_path / "other", SynthOptions(nodes=50, edges=100, dim=3, seed=1))
    same, other = outcrop.open(tmp_path / "same"), outcrop.open(tmp_path / "other")
    inputs = {"a": [1, 2], "b": None}
    name = store.derived.path("x", inputs).name
    assert same.derived.path("x", inputs).name == name
    assert other.derived.path("x", inputs).name != name
    assert store.derived.path("x", {"b": None, "a": [1, 2]}).name == name


def test_a_failed_build_leaves_nothing(store: GraphStore) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.derived.get_or_build("cache", {}, fail)
    assert names(store) == []
    store.derived.get_or_build("cache", {}, write("x"))  # type: ignore[arg-type]


def _build_slowly(path: Path, started: object) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        started.set()  # type: ignore[attr-defined]
        time.sleep(60)

    outcrop.open(path).derived.get_or_build("cache", {}, build)


class Interrupting(Progress):
    """Presses Ctrl-C as soon as it is told that there is something to wait for."""

    def note(self, text: str) -> None:
        assert "another process is making it; waiting" in text
        raise KeyboardInterrupt


class Notes(Progress):
    def __init__(self) -> None:
        self.told = threading.Event()

    def note(self, text: str) -> None:
        self.told.set()


@pytest.mark.parametrize("fails", [False, True])
def test_the_second_of_two_makers_waits_and_takes_over_where_the_first_fails(
    store: GraphStore, fails: bool
) -> None:
    notes, begun, made = Notes(), threading.Event(), []

    def first(folder: Path) -> None:
        begun.set()
        assert notes.told.wait(60)  # the other one waits
        if fails:
            raise RuntimeError("no")
        (folder / "data").write_text("first")

    def make_first() -> None:
        try:
            store.derived.get_or_build("cache", {}, first).close()
        except RuntimeError:
            made.append("failed")

    maker = threading.Thread(target=make_first)
    maker.start()
    assert begun.wait(60)
    build = write("second")
    with store.derived.get_or_build("cache", {}, build, progress=notes) as layout:  # type: ignore[arg-type]
        assert (layout.path / "data").read_text() == ("second" if fails else "first")
    maker.join()
    assert made == (["failed"] if fails else [])


def _collect(path: Path, start: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    for item in find_garbage(path, everything=True):
        remove(item)


def test_two_gcs_at_once_both_succeed(store: GraphStore) -> None:
    def build(folder: Path) -> None:
        for number in range(50):
            (folder / str(number)).mkdir()
            (folder / str(number) / "data").touch()

    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        for number in range(20):
            store.derived.get_or_build("cache", {"number": number}, build).close()
        start = context.Barrier(3)
        gcs = [context.Process(target=_collect, args=(store.path, start)) for _ in range(3)]
        for gc in gcs:
            gc.start()
        for gc in gcs:
            gc.join()
        assert [gc.exitcode for gc in gcs] == [0, 0, 0]
        assert names(store) == []


def test_what_vanishes_while_gc_looks_is_no_error(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        store.derived.get_or_build("cache", {"number": number}, write("x")).close()  # type: ignore[arg-type]
    seen = list(find_garbage(store.path, everything=True))
    assert [remove(item) for item in seen] == [True, True]
    assert [remove(item) for item in seen] == [False, False]


def test_layouts_of_stores_that_cannot_be_written_to_are_kept_elsewhere(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(store.path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        for use in (
            lambda: store.derived.get_or_build("cache", {}, write("x")),  # type: ignore[arg-type]
            store.derived.scratch,
        ):
            with pytest.raises(StoreError, match=r"Read-only file system.*OUTCROP_DERIVED=FOLDER"):
                use()
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("OUTCROP_DERIVED", str(elsewhere))
    synthesise(tmp_path / "other", SynthOptions(nodes=50, edges=100, dim=3, seed=1))
    opened = [outcrop.open(store.path), outcrop.open(tmp_path / "other")]
    for one in opened:
        one.derived.get_or_build("cache", {}, write(one.path.name)).close()  # type: ignore[arg-type]
    with outcrop.open(store.path, derived=elsewhere) as same:
        layout = same.derived.find("cache", {})
        assert layout is not None and (layout.path / "data").read_text() == store.path.name
        layout.close()
    assert not (store.path / "derived").exists()
    assert sorted(os.listdir(elsewhere)) == sorted(one.content for one in opened)
    [item] = find_garbage(store.path, everything=True)
    assert remove(item)
    assert opened[1].derived.find("cache", {}) is not None


def test_two_builders_do_not_meet_and_a_killed_one_leaves_no_trace(store: GraphStore) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    builder = context.Process(target=_build_slowly, args=(store.path, started))
    builder.start()
    assert started.wait(60)
    with pytest.raises(KeyboardInterrupt):
        build = write("x")
        store.derived.get_or_build("cache", {}, build, progress=Interrupting())  # type: ignore[arg-type]
    assert list(find_garbage(store.path)) == []  # it is being made, not garbage
    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join()
    [left] = find_garbage(store.path)
    assert "interrupted" in left.why
    layout = store.derived.get_or_build("cache", {}, write("x"))  # type: ignore[arg-type]
    assert os.listdir(layout.path) and not (layout.path / "half").exists()
    assert list(find_garbage(store.path)) == []


def test_gc_removes_what_nobody_uses_and_nothing_else(store: GraphStore, tmp_path: Path) -> None:
    used = store.derived.get_or_build("used", {}, write("x"))  # type: ignore[arg-type]
    store.derived.get_or_build("unused", {}, write("y" * 10_000)).close()  # type: ignore[arg-type]
    assert list(find_garbage(store.path)) == []
    [unused] = find_garbage(store.path, everything=True)
    assert unused.path.name.startswith("unused-") and unused.bytes >= 10_000
    # someone takes it up between looking and removing
    held = store.derived.find("unused", {})
    assert held is not None
    assert not remove(unused)
    held.close()
    assert remove(unused)
    assert names(store) == [used.path.name]
    # the same place, another content: what was derived from the old one is of no use
    synthesise(tmp_path / "t", SynthOptions(nodes=50, edges=100, dim=3, seed=9))
    shutil.copytree(used.path.parent, tmp_path / "t/derived")
    [stale] = find_garbage(tmp_path / "t")
    assert "other content" in stale.why
    used.close()


def leave(path: Path) -> Path:
    """What a killed maker leaves."""
    path.mkdir()
    (path / ".lock").touch()
    (path / "half").touch()
    return path


@pytest.mark.parametrize("name", [".s.building", ".s.building.removed-0123abcd"])
def test_gc_removes_what_a_killed_import_left_where_there_is_no_store(
    tmp_path: Path, name: str
) -> None:
    left = leave(tmp_path / name)
    leave(tmp_path / ".other.building")
    [found] = find_garbage(tmp_path / "s")
    assert found.path == left and "import" in found.why
    assert remove(found)
    assert os.listdir(tmp_path) == [".other.building"]
    with pytest.raises(StoreError, match="not an Outcrop store"):
        list(find_garbage(tmp_path / "s"))


def test_gc_knows_a_store_by_the_name_of_the_current_folder(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = leave(store.path.parent / f".{store.path.name}.building")
    monkeypatch.chdir(store.path)
    [found] = find_garbage(Path("."))
    assert found.path == left


def test_an_interrupted_removal_does_not_stop_the_next_one(store: GraphStore) -> None:
    layout = store.derived.get_or_build("cache", {}, write("x"))  # type: ignore[arg-type]
    layout.close()
    for name in (f"{layout.path.name}.removed", f"{layout.path.name}.removed-0123abcd"):
        shutil.copytree(layout.path, layout.path.with_name(name))
    assert len(list(find_garbage(store.path))) == 2
    garbage = sorted(find_garbage(store.path, everything=True), key=lambda item: item.path)
    assert [remove(item) for item in garbage] == [True] * 3
    assert names(store) == []


def test_a_damaged_record_is_garbage(store: GraphStore) -> None:
    layout = store.derived.get_or_build("cache", {}, write("x"))  # type: ignore[arg-type]
    (layout.path / "layout.json").write_text("{}")
    layout.close()
    [found] = find_garbage(store.path)
    assert "damaged" in found.why


def hold_for_a_moment(path: Path) -> threading.Timer:
    """What gc does to whatever it looks at, if slowly."""
    timer = threading.Timer(0.03, DirectoryLock(path, shared=False).release)
    timer.start()
    return timer


def test_readers_and_makers_wait_for_gc_to_look(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcrop.store.locks._PATIENCE_SECONDS", 5)  # a machine may be busy
    layout = store.derived.get_or_build("cache", {}, write("x"))  # type: ignore[arg-type]
    layout.close()
    looking = hold_for_a_moment(layout.path)
    assert store.derived.find("cache", {}) is not None
    looking.join()
    looking = hold_for_a_moment(leave(tmp_path / ".made.building"))
    WorkDirectory(tmp_path / "made").abandon()
    looking.join()


def test_scratch_of_killed_runs_is_removed_by_the_next(store: GraphStore) -> None:
    killed = store.derived.scratch()
    (killed.path / "trace").write_text("half")
    killed._lock.release()  # type: ignore[union-attr]  # as the end of its process does
    with store.derived.scratch() as mine:
        (mine.path / "trace").write_text("mine")
        with store.derived.scratch():  # leaves alone what is in use
            assert (mine.path / "trace").read_text() == "mine"
        assert not killed.path.exists()
        assert list(find_garbage(store.path, everything=True)) == []
    assert names(store) == []
