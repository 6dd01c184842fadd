"""The boundary: an array of another type or layout is refused, never converted in silence.

A converted output would be written, and dropped; a converted input would cost a copy, or its ids.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from outcrop import _core

IDS = np.arange(4)
INDPTR = np.arange(5)
BYTES = np.zeros(256, np.uint8)
FLOATS = np.zeros((4, 8), np.float32)
HALVES = np.zeros(32, np.uint16)
COUNTS = np.ones(4, np.uint32)
EXTENTS = {"offsets": IDS * 8, "lengths": IDS * 0 + 8, "places": IDS * 8}


class Transfers:
    """The engine's, over a file of zeros."""

    def __getattr__(self, method: str) -> Any:
        engine = _core.Engine(uring=False, workers=1, queue_depth=4, bounce_bytes=1 << 20,
                              unit_bytes=4096, gap_bytes=0, merge=True,
                              max_request_bytes=1 << 16)  # fmt: skip

        def call(**arguments: Any) -> None:
            with tempfile.TemporaryDirectory() as folder:
                file = _core.File.create(f"{folder}/file", 4096, _core.Access.BUFFERED)
                file.truncate(4096)
                getattr(engine, method)(file=file, **arguments).wait()

        return call


def ended_merger() -> _core.Merger:
    merger = _core.Merger(1, by_source=False, wide=False, numbered=False)
    merger.set_window(0, BYTES.copy(), 0, last=True)
    return merger


def sealed_ids() -> _core.IdSet:
    ids = _core.IdSet(8)
    ids.add(IDS)
    ids.seal()
    return ids


def sampler() -> _core.NeighborSampler:
    topology = _core.array_topology(INDPTR, IDS)
    return _core.NeighborSampler(topology, [2], replace=False, threads=1)


def copier() -> _core.Copier:
    return _core.Copier(row_bytes=32, dim=8, encoding=_core.Encoding.FLOAT32, threads=1)


# Whose method the name's last part is. Made for each call: what lives at the exit is a leak.
OWNERS: dict[str, Callable[[], Any]] = {
    "Engine": Transfers,
    "Merger": ended_merger,
    "CscWriter": lambda: _core.CscWriter(4),
    "IdSet": lambda: _core.IdSet(8),
    "SealedIdSet": sealed_ids,
    "RmatGraph": lambda: _core.RmatGraph(4, 0.5, 0.2, 0.2, 0),
    "CommunityGraph": lambda: _core.CommunityGraph(4, 2, 2, 0.5, 0),
    "Copier": copier,
    "CompressedOffsets": lambda: _core.CompressedOffsets(len(INDPTR) - 1, int(INDPTR[-1])),
    "NeighborSampler": sampler,
    "": lambda: _core,
}
SMALL = {"wide": False, "numbered": False}
PACKED = {"num_nodes": 4, "undirected": False, "drop_loops": False, "first_number": 0, **SMALL}
SORTED = {"count": 4, "by_source": True, **SMALL}
DRAWN = {"first": 0, "count": 4, "wide": False}
RANDOM = {"seed": 0, "first": 0}
KEY = {"seed": 0, "stream": 0, "epoch": 0, "batch": 0}
SHUFFLED = {"size": 4, "seed": 0, "stream": 0, "epoch": 0, "begin": 0}

# The arrays that each function takes, and the rest of its arguments.
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Engine.read_extents": ({**EXTENTS, "out": BYTES}, {}),
    "Engine.read_rows": (
        {"ids": IDS, "places": IDS, "out": BYTES},
        {"base": 0, "row_bytes": 8},
    ),
    "Engine.write_extents": ({**EXTENTS, "source": BYTES}, {}),
    "pack_edges": ({"sources": IDS, "targets": IDS, "out": BYTES}, PACKED),
    "sort_edges": ({"records": BYTES, "scratch": BYTES}, SORTED),
    "Merger.set_window": ({"window": BYTES}, {"run": 0, "count": 0, "last": True}),
    "Merger.merge": ({"out": BYTES}, {}),
    "CscWriter.write": (
        {"records": BYTES, "indices": IDS, "numbers": IDS, "indptr": INDPTR},
        {"count": 0, "wide": False, "numbered": True},
    ),
    "CscWriter.finish": ({"indptr": INDPTR}, {}),
    "IdSet.add": ({"ids": IDS}, {}),
    "IdSet.add_new": ({"ids": IDS}, {}),
    "SealedIdSet.relabel": ({"records": BYTES}, {"count": 0, "numbered": False}),
    "SealedIdSet.list": ({"out": IDS}, {"from_id": 0}),
    "parse_edges": ({"text": BYTES, "sources": IDS, "targets": IDS}, {"final": True}),
    "RmatGraph.edges": ({"out": BYTES}, DRAWN),
    "CommunityGraph.edges": ({"out": BYTES}, DRAWN),
    "CommunityGraph.labels": ({"out": IDS}, {"first": 0}),
    "random_labels": ({"out": IDS}, {"classes": 4, **RANDOM}),
    "random_order": ({"out": IDS}, {"num_nodes": 4, **RANDOM}),
    "features": ({"labels": IDS, "out": FLOATS}, {"signal": 1.0, **RANDOM}),
    "Expansion": ({"kernel": np.ones(4)}, {"num_nodes": 4, "copies": 2, "seed": 0}),
    "decode_float16": ({"rows": HALVES, "out": FLOATS}, {}),
    "decode_bfloat16": ({"rows": HALVES, "out": FLOATS}, {}),
    "decode_int8": ({"rows": np.zeros(48, np.uint8), "out": FLOATS}, {}),
    "Copier.gather": ({"rows": FLOATS, "slots": IDS, "out": FLOATS, "places": IDS}, {}),
    "Copier.gather_at": ({"data": FLOATS, "offsets": IDS, "places": COUNTS, "out": FLOATS}, {}),
    "Copier.copy": ({"from_rows": COUNTS, "to_rows": COUNTS, "out": FLOATS}, {}),
    "array_topology": ({"indptr": INDPTR, "indices": IDS}, {}),
    "CompressedOffsets.append": ({"entries": INDPTR}, {}),
    "NeighborSampler.sample": ({"seeds": IDS}, KEY),
    "expand_edges": (
        {"sources": COUNTS, "counts": COUNTS, "out": np.zeros((2, 4), np.int64)},
        {},
    ),
    "shuffled_seeds": ({"out": IDS}, SHUFFLED),
}
# They take bytes of any type.
UNTYPED = [("Engine.read_extents", "out"), ("Engine.read_rows", "out"),
           ("Engine.write_extents", "source"), ("Copier.gather", "rows"),
           ("Copier.gather_at", "data")]  # fmt: skip
ARGUMENTS = [(call, name) for call, (arrays, _) in CALLS.items() for name in arrays]


def given(call: str) -> dict[str, Any]:
    return {name: array.copy() for name, array in CALLS[call][0].items()}


def make_call(name: str, arrays: dict[str, Any]) -> None:
    owner, _, method = name.rpartition(".")
    getattr(OWNERS[owner](), method)(**CALLS[name][1], **arrays)


def another_type(array: Any) -> Any:
    """One that its values would survive, in either direction."""
    return array.astype(np.int16 if array.dtype != np.uint8 else np.int32)


def with_gaps(array: Any) -> Any:
    """The same values, not contiguous."""
    wider = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
    wider[..., ::2] = array
    return wider[..., ::2]


@pytest.mark.parametrize("call", CALLS)
def test_the_right_arrays_are_taken(call: str) -> None:
    make_call(call, given(call))


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_an_array_of_another_layout_is_refused(call: str, name: str) -> None:
    arrays = given(call)
    arrays[name] = with_gaps(arrays[name])
    with pytest.raises(TypeError):
        make_call(call, arrays)


@pytest.mark.parametrize(("call", "name"), [a for a in ARGUMENTS if a not in UNTYPED])
def test_an_array_of_another_type_is_refused(call: str, name: str) -> None:
    arrays = given(call)
    arrays[name] = another_type(arrays[name])
    with pytest.raises(TypeError):
        make_call(call, arrays)


@pytest.mark.parametrize(
    ("indices", "out"), [(np.int32, np.int32), (np.int32, np.int64), (np.int64, np.int64)]
)
def test_an_expansion_writes_where_it_was_told(indices: type, out: type) -> None:
    expansion = _core.Expansion(4, 2, np.ones(4), 0)
    wrote: Any = np.full(64, -1, out)
    degrees = np.full(4, -1)
    count = expansion.expand(0, INDPTR, IDS.astype(indices), wrote, degrees)
    assert degrees.sum() == count and (wrote[:count] >= 0).all()
    for wrong in ({"degrees": degrees.astype(np.int32)}, {"out": wrote.astype(np.int16)}):
        arrays = {"indptr": INDPTR, "indices": IDS.astype(indices), "out": wrote,
                  "degrees": degrees, **wrong}  # fmt: skip
        with pytest.raises(TypeError):
            expansion.expand(0, **arrays)
