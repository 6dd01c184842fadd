"""Work directories: whoever's files are in the way, they stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outcrop.errors import LockedError, StoreError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.store.derived import DerivedLayouts, Garbage, find_garbage, remove
from outcrop.store.locks import DirectoryLock, replace_synced
from outcrop.store.workdir import WorkDirectory, empty, leftovers


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of somebody else, which looks as if a killed maker had left it."""
    folder = tmp_path / "elsewhere"
    (folder / "more").mkdir(parents=True)
    for name in (".lock", "precious", "more/precious"):
        (folder / name).touch()
    (folder / "precious").write_text("years of work")
    return folder


def contents(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_linked_work_directory_is_refused_and_what_it_points_to_stays(
    tmp_path: Path, victim: Path
) -> None:
    before = contents(victim)
    (tmp_path / ".g.outcrop.building").symlink_to(victim)
    with pytest.raises(StoreError, match=r"\.g\.outcrop\.building: is a link"):
        synthesise(tmp_path / "g.outcrop", SynthOptions(nodes=50, edges=100, dim=3))
    assert contents(victim) == before
    assert not (tmp_path / "g.outcrop").exists()


def make_file(path: Path) -> None:
    path.write_text("a file")


def make_foreign(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("not a work directory")


def make_with_lock_of_another_kind(path: Path) -> None:
    make_foreign(path)
    (path / ".lock").write_text("pid 4711")


def make_with_linked_lock(path: Path) -> None:
    make_foreign(path)
    (path / ".lock").symlink_to("precious")


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize(
    "make", [make_file, make_foreign, make_with_lock_of_another_kind, make_with_linked_lock]
)
def test_what_is_not_ours_is_refused_and_stays(
    tmp_path: Path, make: Callable[[Path], None], resumable: bool
) -> None:
    path = tmp_path / ".made.building"
    make(path)
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=r"\.made\.building: .*remove or rename it") as raised:
        WorkDirectory(tmp_path / "made", resumable=resumable)
    assert not isinstance(raised.value, LockedError)
    assert contents(tmp_path) == before
    assert leftovers(tmp_path) == []


def test_an_empty_directory_and_one_of_a_killed_maker_are_taken(tmp_path: Path) -> None:
    path = tmp_path / ".made.building"
    path.mkdir()
    killed = WorkDirectory(tmp_path / "made")
    (path / "half").touch()
    killed._leave()
    with WorkDirectory(tmp_path / "made") as work:
        assert os.listdir(work.path) == [".lock"]
        work.commit()


def test_a_link_in_what_could_be_gone_on_with_is_refused(tmp_path: Path, victim: Path) -> None:
    before = contents(victim)
    killed = WorkDirectory(tmp_path / "made", resumable=True)
    (killed.path / "chunks.bin").symlink_to(victim / "precious")
    killed._leave()
    with pytest.raises(StoreError, match=r"chunks\.bin: is a link"):
        WorkDirectory(tmp_path / "made", resumable=True)
    WorkDirectory(tmp_path / "made").abandon()  # which begins anew, and removes the link alone
    assert contents(victim) == before


def test_a_linked_folder_is_not_emptied(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "whole").symlink_to(victim)
    before = contents(victim)
    with pytest.raises(OSError):
        empty(tmp_path / "whole")
    assert contents(victim) == before


@pytest.mark.parametrize(
    "name",
    [
        "derived/cache-0123",
        "derived/.cache-0123.building",
        "derived/.scratch-0123.building",
        "derived/cache-0123.removed-0123abcd",
        "../.s.building",
        "../.s.building.removed-0123abcd",
    ],
)
def test_gc_follows_no_links(tmp_path: Path, victim: Path, name: str) -> None:
    store = tmp_path / "s"
    synthesise(store, SynthOptions(nodes=50, edges=100, dim=3))
    (store / "derived").mkdir()
    place = store / name
    place.symlink_to(victim)
    before = contents(victim)
    assert list(find_garbage(store, everything=True)) == []
    assert not remove(Garbage(place, "", 0))
    DerivedLayouts(store, "content").scratch().abandon()  # removes what killed runs left
    assert contents(victim) == before and place.is_symlink()


def test_layouts_in_a_linked_derived_folder_are_removed_and_their_links_not_followed(
    tmp_path: Path, victim: Path
) -> None:
    store = tmp_path / "s"
    synthesise(store, SynthOptions(nodes=50, edges=100, dim=3))
    (tmp_path / "other drive").mkdir()
    (store / "derived").symlink_to(tmp_path / "other drive")
    before = contents(victim)

    def build(folder: Path) -> None:
        (folder / "data").symlink_to(victim)

    DerivedLayouts(store, "content").get_or_build("cache", {}, build).close()
    [item] = find_garbage(store, everything=True)
    assert remove(item)
    assert os.listdir(tmp_path / "other drive") == []
    assert contents(victim) == before


def test_a_replaced_file_follows_no_link_beside_it(tmp_path: Path, victim: Path) -> None:
    before = contents(victim)
    (tmp_path / ".last.writing").symlink_to(victim / "precious")
    replace_synced(tmp_path / "last", b"new")
    assert (tmp_path / "last").read_bytes() == b"new"
    assert contents(victim) == before
    assert not os.path.lexists(tmp_path / ".last.writing")


def test_a_lock_is_not_taken_through_a_link_unless_it_is_the_users_own(
    tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "folder").symlink_to(victim)
    with pytest.raises(OSError):
        DirectoryLock(tmp_path / "folder", shared=False)
    DirectoryLock(tmp_path / "folder", shared=False, follow=True).release()
    shutil.rmtree(victim)
