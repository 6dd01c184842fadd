"""Sampling as docs/format.md specifies it, in plain Python: slow, and without the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

_FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
_WORD = 2**32 - 1
_LONG = 2**64 - 1
_SEED_ORDER = 9
_HOP = 10
_ROUNDS = 24


class Key(NamedTuple):
    """Which batch."""

    seed: int = 0
    stream: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass
class Sampled:
    """A batch: what _core's samplers hold after a sample."""

    nodes: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    edge_ids: list[int] = field(default_factory=list)
    nodes_per_hop: list[int] = field(default_factory=list)
    edges_per_hop: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)


class Csc:
    """A graph: the in-neighbours of v are indices[indptr[v] : indptr[v + 1]]."""

    def __init__(
        self, indptr: Sequence[int] | NDArray[Any], indices: Sequence[int] | NDArray[Any]
    ) -> None:
        self._indptr = indptr
        self._indices = indices

    def begin(self, node: int) -> int:
        return int(self._indptr[node])

    def degree(self, node: int) -> int:
        return int(self._indptr[node + 1]) - int(self._indptr[node])

    def source(self, edge: int) -> int:
        return int(self._indices[edge])


# Random numbers


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    k0, k1 = key & _WORD, key >> 32
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _WORD, p0 >> 32 ^ c3 ^ k1, p0 & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3


def low64(words: tuple[int, int, int, int]) -> int:
    return words[0] | words[1] << 32


def high64(words: tuple[int, int, int, int]) -> int:
    return words[2] | words[3] << 32


def below(bits: int, bound: int) -> int:
    return bits * bound >> 64


# Picks


def hop_key(key: Key, hop: int) -> int:
    return low64(philox(key.seed, (key.epoch, key.batch, hop << 8 | key.stream, _HOP)))


def draw(hop_key: int, node: int, root: int, index: int) -> int:
    words = philox(hop_key, (node & _WORD, node >> 32, root, index // 2))
    return low64(words) if index % 2 == 0 else high64(words)


def picks(hop_key: int, node: int, root: int, degree: int, fanout: int, replace: bool) -> list[int]:
    if degree == 0:
        return []
    if fanout == -1:
        return list(range(degree))
    if replace:
        return sorted(below(draw(hop_key, node, root, i), degree) for i in range(fanout))
    if fanout >= degree:
        return list(range(degree))
    chosen: set[int] = set()
    for i in range(fanout):
        last = degree - fanout + i
        position = below(draw(hop_key, node, root, i), last + 1)
        chosen.add(last if position in chosen else position)
    return sorted(chosen)


def picked_edges(
    graph: Csc, hop_key: int, node: int, root: int, fanout: int, replace: bool
) -> list[int]:
    chosen = picks(hop_key, node, root, graph.degree(node), fanout, replace)
    return [graph.begin(node) + position for position in chosen]


# Samplers


def sample_neighbors(
    graph: Csc, seeds: Sequence[int], fanouts: Sequence[int], key: Key, *, replace: bool = False
) -> Sampled:
    out = Sampled(nodes=list(seeds), nodes_per_hop=[len(seeds)])
    local: dict[int, int] = {}
    for position, seed in enumerate(seeds):
        local.setdefault(seed, position)
    begin = 0
    for hop, fanout in enumerate(fanouts):
        frontier, edges_before = out.nodes[begin:], len(out.edge_ids)
        begin = len(out.nodes)
        for node in frontier:
            edges = picked_edges(graph, hop_key(key, hop), node, 0, fanout, replace)
            out.counts.append(len(edges))
            out.edge_ids += edges
            for edge in edges:
                source = graph.source(edge)
                if source not in local:
                    local[source] = len(out.nodes)
                    out.nodes.append(source)
                out.sources.append(local[source])
        out.nodes_per_hop.append(len(out.nodes) - begin)
        out.edges_per_hop.append(len(out.edge_ids) - edges_before)
    return out


def sample_shadow(
    graph: Csc, roots: Sequence[int], fanouts: Sequence[int], key: Key, *, replace: bool = False
) -> Sampled:
    out = Sampled(roots=[0])
    for number, root in enumerate(roots, start=1):
        members = _shadow_members(graph, root, number, fanouts, key, replace)
        local = {node: len(out.nodes) + i for i, node in enumerate(members)}
        for node in members:
            edges = range(graph.begin(node), graph.begin(node) + graph.degree(node))
            kept = [edge for edge in edges if graph.source(edge) in local]
            out.counts.append(len(kept))
            out.edge_ids += kept
            out.sources += [local[graph.source(edge)] for edge in kept]
        out.nodes += members
        out.roots.append(len(out.nodes))
    return out


def _shadow_members(
    graph: Csc, root: int, number: int, fanouts: Sequence[int], key: Key, replace: bool
) -> list[int]:
    """The nodes of one root, in order of discovery."""
    members, begin = {root: None}, 0
    for hop, fanout in enumerate(fanouts):
        frontier = list(members)[begin:]
        begin = len(members)
        for node in frontier:
            for edge in picked_edges(graph, hop_key(key, hop), node, number, fanout, replace):
                members.setdefault(graph.source(edge))
    return list(members)


# The order of seeds


class Permutation:
    """[0, size) -> [0, size): a Feistel network, walked until it lands inside."""

    def __init__(self, size: int, key: int) -> None:
        bits = max((size - 1).bit_length(), 1)
        self._size = size
        self._low_bits = bits // 2
        self._low_mask = (1 << bits // 2) - 1
        self._high_mask = (1 << bits - bits // 2) - 1
        self._keys = [
            low64(philox(key, (size & _WORD, size >> 32, number, _SEED_ORDER))) | 1
            for number in range(_ROUNDS)
        ]

    def __call__(self, item: int) -> int:
        item = self._encrypt(item)
        while item >= self._size:
            item = self._encrypt(item)
        return item

    def _encrypt(self, item: int) -> int:
        low, high = item & self._low_mask, item >> self._low_bits
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                low ^= _mix(high, key) & self._low_mask
            else:
                high ^= _mix(low, key) & self._high_mask
        return high << self._low_bits | low


def _mix(value: int, key: int) -> int:
    value = (value + key) * 0x9E3779B97F4A7C15 & _LONG
    value ^= value >> 32
    return (value * key & _LONG) >> 32


def seed_order(size: int, key: Key) -> list[int]:
    """Positions of the input in the order of an epoch; key.batch plays no part."""
    words = philox(key.seed, (key.epoch & _WORD, key.epoch >> 32, key.stream, _SEED_ORDER))
    permutation = Permutation(size, low64(words))
    return [permutation(position) for position in range(size)]


# The golden tables of the specification


def sampling_section() -> str:
    """The section of docs/format.md that specifies sampling."""
    return _FORMAT.read_text().split("\n## Sampling\n")[1].split("\n## ")[0]


def golden_table(*header: str) -> list[list[str]]:
    """The cells of the table under this header."""
    lines = sampling_section().splitlines()
    at = lines.index("".join(f"| {name} " if name else "| " for name in header) + "|") + 2
    rows = []
    while at < len(lines) and lines[at].startswith("|"):
        rows.append([cell.strip() for cell in lines[at].split("|")[1:-1]])
        at += 1
    return rows


def numbers(cell: str) -> list[int]:
    """Numbers of a table's cell or of a line; dots stand for what is left out."""
    return [int(word) for word in cell.split() if word != "..."]
