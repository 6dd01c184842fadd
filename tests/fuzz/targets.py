"""Targets: what is altered, and who reads it. To add one, write a function of about ten lines.

A target is given a folder, makes what is good there, and returns a function that alters it at
random and lets the package read it. Whatever the package raises on purpose may come out of it.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import outcrop
from outcrop.cli.info import _facts
from outcrop.disk import Disk
from outcrop.ingest.build import import_graph
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.npz import npz_source
from outcrop.ingest.source import Attributes
from outcrop.layout.neighbors import read_header
from outcrop.layout.pack.reader import Pack
from outcrop.layout.trace import Trace
from outcrop.loader import NeighborLoader
from outcrop.options import parse_count, parse_size
from outcrop.store.derived import DerivedLayouts, Layout, find_garbage
from outcrop.store.format import MANIFEST, seal, unseal
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from outcrop.tools.report.load import load
from outcrop.train import fit, load_checkpoint, save_checkpoint
from outcrop.train.options import TrainOptions, read_config
from tests.fuzz.mutate import Rng, altered, altered_bytes
from tests.stores import make_random_store, rewrite_array

TryOne = Callable[[Rng], object]
TARGETS: dict[str, Callable[[Path], TryOne]] = {}


def target(make: Callable[[Path], TryOne]) -> Callable[[Path], TryOne]:
    TARGETS[make.__name__] = make
    return make


# Stores


def _store(folder: Path) -> Path:
    path = folder / "g.outcrop"
    make_random_store(path, 200, 1500, dim=6).close()
    return path


def _use(path: Path) -> None:
    """All that opening a store promises to have checked."""
    with GraphStore(path) as store:
        assert _facts(store) and store.content
        for name in store.manifest.arrays:
            store.array(name).sum() if name != "features" else store.array(name)
            assert len(store.load(name)) >= 0
        if store.has("features"):
            store.features.gather([0, store.num_nodes - 1])
        outcrop.verify(path, quick=True)


@target
def manifest(folder: Path) -> TryOne:
    """Values altered under a digest that is made good again."""
    path = _store(folder)
    good = unseal((path / MANIFEST).read_bytes(), "m")

    def try_one(rng: Rng) -> None:
        (path / MANIFEST).write_bytes(_sealed(altered(good, rng)))
        _use(path)

    return try_one


def _sealed(values: Any) -> bytes:
    return seal(values) if isinstance(values, dict) else json.dumps(values).encode()


@target
def manifest_bytes(folder: Path) -> TryOne:
    path = _store(folder)
    good = (path / MANIFEST).read_bytes()

    def try_one(rng: Rng) -> None:
        (path / MANIFEST).write_bytes(altered_bytes(good, rng, (b"{", b"]", b"NaN", b'"digest"')))
        _use(path)

    return try_one


@target
def arrays(folder: Path) -> TryOne:
    """Ids, offsets and labels altered under good checksums; a strategy reads them."""
    path = _store(folder)
    good = {file: file.read_bytes() for file in (*path.rglob("*.npy"), path / MANIFEST)}
    names = ("indptr", "indices", "labels", "train")

    def try_one(rng: Rng) -> None:
        shutil.rmtree(path / "derived", ignore_errors=True)
        for file, data in good.items():
            file.write_bytes(data)
        name = rng.choice(names)

        def change(values: Any) -> None:
            bad = rng.choice((-1, 0, 199, 200, 1500, 2**31 - 1, 2**31, 2**62, -(2**63)))
            at = rng.randrange(len(values))
            values[at] = np.int64(bad).astype(values.dtype)

        rewrite_array(path, name, change)
        strategy = rng.choice(list(STRATEGIES))
        _run(path, strategy)

    return try_one


def _run(store: Path | GraphStore, strategy: str) -> None:
    with closing(
        NeighborLoader(store, [3, 2], "train", strategy=strategy, batch_size=40, memory="200MB")
    ) as loader:
        for _ in loader:
            pass


# What strategies derive


def _derived(folder: Path, strategy: str, kind: str) -> tuple[Path, Path]:
    """A store, and a layout of it."""
    path = _store(folder)
    _run(path, strategy)
    (layout, *_) = sorted((path / "derived").glob(f"{kind}-*"))
    return path, layout


def _resealed(file: Path, read: Callable[[], object]) -> TryOne:
    good = unseal(file.read_bytes(), "header")

    def try_one(rng: Rng) -> object:
        file.write_bytes(_sealed(altered(good, rng)))
        return read()

    return try_one


@target
def layout(folder: Path) -> TryOne:
    path, of = _derived(folder, "diskgnn", "trace")
    content = outcrop.open(path).content

    def read() -> object:
        layouts = DerivedLayouts(path, content)
        with Layout(of):
            return layouts.records("trace"), list(find_garbage(path, everything=True))

    return _resealed(of / "layout.json", read)


@target
def trace(folder: Path) -> TryOne:
    _, of = _derived(folder, "diskgnn", "trace")
    disk = Disk()

    def read() -> object:
        with Trace(disk, of) as opened:
            return opened.bytes, opened.largest, [opened.read(t) for t in range(len(opened))]

    return _resealed(of / "trace.json", read)


@target
def pack(folder: Path) -> TryOne:
    _, of = _derived(folder, "diskgnn", "pack")
    disk = Disk()

    def read() -> object:
        with Pack(disk, of) as opened:
            for t in range(len(opened)):
                table = opened.table(t)
                for _ in opened.blocks(t):
                    pass
                for _ in opened.shared_blocks(t, table):
                    pass
            cached = [kept.tobytes() for kept, _ in opened.cache_blocks()]
            return cached, opened.predicted.amplification

    return _resealed(of / "pack.json", read)


@target
def neighbors(folder: Path) -> TryOne:
    path, of = _derived(folder, "pagraph", "neighbors")
    store = GraphStore(path)

    def read() -> None:
        assert read_header(of).memory_bytes >= 0
        _run(store, "pagraph")

    return _resealed(of / "neighbors.json", read)


# What is imported


_HEADER_TOKENS = (b"'descr'", b"'shape'", b"(1,)", b"-1", b"9" * 30, b"'|O'", b"'<U4'", b"True",
                  b"(" * 300, b"None", b"\x02\x00", b"\x03\x00", b"V0", b"<f8", b">i8")  # fmt: skip


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@target
def npy(folder: Path) -> TryOne:
    """Files of attributes."""
    (folder / "g.txt").write_text("0 1\n1 2\n2 0\n")
    good = {
        "x.npy": _npy(np.ones((3, 2), np.float32)),
        "y.npy": _npy(np.array([0, 1, 0])),
        "train.npy": _npy(np.array([0, 2])),
    }

    def try_one(rng: Rng) -> None:
        for name, data in good.items():
            bad = altered_bytes(data[:140], rng, _HEADER_TOKENS) + data[140:]
            (folder / name).write_bytes(bad if rng.random() < 0.6 else data)
        files = Files(
            folder / "x.npy", rng.random() < 0.3, folder / "y.npy", {"train": folder / "train.npy"}
        )
        _import(folder, edgelist_source(folder / "g.txt", num_nodes=3,
                                        attributes=lambda _: file_attributes(files)))  # fmt: skip

    return try_one


def _import(folder: Path, source: Any) -> None:
    try:
        import_graph(source, folder / "s")
    finally:
        shutil.rmtree(folder / "s", ignore_errors=True)


@target
def npz(folder: Path) -> TryOne:
    """Members left out, altered in their headers, of other dtypes and shapes; the zip itself."""
    rng = np.random.default_rng(0)
    good = {
        "edge_index": np.array([[0, 1, 2], [1, 2, 3]]),
        "num_nodes": np.array(4),
        "x": rng.standard_normal((4, 2)).astype(np.float32),
        "y": np.array([0, 1, -1, 1]),
        "train_mask": np.array([True, False, False, False]),
    }
    sparse = {
        "x_data": np.ones(3, np.float32),
        "x_indices": np.array([0, 1, 0]),
        "x_indptr": np.array([0, 2, 2, 3, 3]),
        "x_shape": np.array([4, 2]),
    }

    def try_one(rng: Rng) -> None:
        members = {name: _npy(_odd_array(array, rng)) for name, array in good.items()}
        if rng.random() < 0.4:
            del members["x"]
            members |= {name: _npy(_odd_array(array, rng)) for name, array in sparse.items()}
        if rng.random() < 0.4:
            name = rng.choice(list(members))
            members[name] = altered_bytes(members[name][:130], rng, _HEADER_TOKENS)
        if rng.random() < 0.2:
            del members[rng.choice(list(members))]
        with zipfile.ZipFile(folder / "g.npz", "w", rng.choice((0, 8))) as archive:
            for name, data in members.items():
                archive.writestr(f"{name}.npy", data)
        if rng.random() < 0.3:
            data = (folder / "g.npz").read_bytes()
            (folder / "g.npz").write_bytes(altered_bytes(data, rng, (b"PK\x01\x02", b"PK\x03\x04")))
        _import(folder, npz_source(folder / "g.npz"))

    return try_one


def _odd_array(array: Any, rng: Rng) -> Any:
    kind = rng.randrange(12)
    if kind == 0 and array.size:
        array = array.copy()
        bad = rng.choice((-1, 4, 2**40))
        array.reshape(-1)[rng.randrange(array.size)] = bad if array.dtype != bool else True
    elif kind == 1:
        array = array.astype(rng.choice(("<U3", "S2", "<f8", "<u8", "<c16", "?", ">i4", "<i1")))
    elif kind == 2:
        array = array.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
    elif kind == 3 and array.ndim:
        array = array[: rng.randrange(len(array) + 1)]
    return array


@target
def edges(folder: Path) -> TryOne:
    """Text, some of it gzipped."""
    good = b"# from,to\nsrc dst\n" + b"".join(b"%d %d\n" % (i, i * 7 % 50) for i in range(50))
    tokens = (b",", b";", b"\t", b" ", b"\r\n", b"\r", b"-", b"9" * 25, b"\0", b"%", b"\x1b[2J",
              b"\xff", b'"a"', b"\x93NUMPY", b"PK\x03\x04", b"1.5", b"\n\n")  # fmt: skip

    def try_one(rng: Rng) -> None:
        text = altered_bytes(good[rng.choice((0, 10, 18)) :], rng, tokens)
        if rng.random() < 0.2:
            text = gzip.compress(text, 1)
            text = altered_bytes(text, rng) if rng.random() < 0.7 else text
        (folder / "g.txt").write_bytes(text)
        nodes = rng.choice((None, 50, 1))
        _import(folder, edgelist_source(folder / "g.txt", num_nodes=nodes,
                                        skip_lines=rng.choice((0, 2)),
                                        attributes=lambda _: Attributes()))  # fmt: skip

    return try_one


@target
def samples(folder: Path) -> TryOne:
    path = _store(folder)
    store = GraphStore(path)
    good = {
        "n_id": [5, 9, 30],
        "edge_index": [[2, 1], [0, 0]],
        "batch_size": 1,
        "input_id": [0],
        "e_id": [3, 8],
        "num_sampled_nodes": [1, 2],
        "num_sampled_edges": [2],
    }

    def try_one(rng: Rng) -> None:
        values = altered(good, rng)
        if isinstance(values, dict):
            values = SimpleNamespace(**{k: v for k, v in values.items() if isinstance(k, str)})
        try:
            outcrop.import_samples(store, [values, SimpleNamespace(**good)], "fuzzed")
        finally:
            shutil.rmtree(path / "derived", ignore_errors=True)

    return try_one


# Options and records


@target
def options(folder: Path) -> TryOne:
    """Names of strategies with options, sizes and counts."""
    good = (
        "ginex:superbatch=10:policy=static", "gnndrive:topology=cache:x=slots", "mmap:threads=2",
        "diskgnn:segments=none", "8GB", "512MiB", "1.5M", "auto", "diskgnn:refresh=background",
    )  # fmt: skip
    tokens = (b"=", b":", b"nan", b"1e999", b"-1", b"none", b"9" * 5000, b"true", b"iB", b"0x1")

    def try_one(rng: Rng) -> None:
        text = altered_bytes(rng.choice(good).encode(), rng, tokens).decode("utf8", "replace")
        reader: Any = rng.choice((variant_named, parse_size, parse_count))
        reader(text)

    return try_one


@target
def yaml(folder: Path) -> TryOne:
    good = b"model: sage\nlayers: 2\nnum-neighbors: [5, 5]\nlr: 0.01\nmemory: 1GB\nseed: 3\n"
    tokens = (b".nan", b".inf", b"9" * 400, b"0x" + b"f" * 4000, b"!!python/object:os.system",
              b"&a [*a]", b"\xff", b"\t", b"- ", b"null", b"'", b"? ", b"{", b"1e400", b"~",
              b"2001-01-01", b"<<: 3")  # fmt: skip

    def try_one(rng: Rng) -> None:
        path = folder / "run.yaml"
        path.write_bytes(altered_bytes(good, rng, tokens))
        TrainOptions.from_dict(read_config(path), str(path))
        TrainOptions.from_dict(altered({"layers": 2, "lr": 0.1, "num_neighbors": [3, 3]}, rng))

    return try_one


@target
def checkpoint(folder: Path) -> TryOne:
    """The bytes of a checkpoint, or its facts with a digest that fits them."""
    store, run = _store(folder), folder / "run"
    options = TrainOptions(
        layers=2, hidden=4, num_neighbors=(3, 3), epochs=1, batch_size=50, device="cpu",
        checkpoint_dir=str(run),
    )  # fmt: skip
    with GraphStore(store) as opened:
        fit(opened, options)
    path = run / "last.safetensors"
    good, data = load_checkpoint(path), path.read_bytes()

    def try_one(rng: Rng) -> None:
        if rng.random() < 0.5:
            path.write_bytes(altered_bytes(data, rng))
        else:
            save_checkpoint(path, replace(good, facts=altered(good.facts, rng)))
        with GraphStore(store) as opened:
            fit(opened, replace(options, resume=True))

    return try_one


@target
def records(folder: Path) -> TryOne:
    """Records of runs, as a report reads them."""
    good = json.loads(next(_RECORDS.glob("ginex-1.json")).read_bytes())

    def try_one(rng: Rng) -> None:
        (folder / "run.json").write_text(json.dumps(altered(good, rng)))
        load(folder / "run.json")

    return try_one


_RECORDS = Path(__file__).parents[2] / "benchmarks/results/quick"
