"""edgelist: lines of text, plain or gzipped, one edge each -> a graph source.

The format of SNAP, KONECT and most others: two ids per line, separated by blanks, tabs, a comma or
a semicolon; lines that begin with # or % are comments; further columns are ignored.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import IngestError
from outcrop.ingest.source import Attributes, EdgeChunk, GraphSource, no_attributes
from outcrop.schema import shown

_READ_BYTES = 1 << 20
_MOST_LINE_BYTES = 1 << 20
_EDGES_PER_CHUNK = 1 << 17

_WHAT = {
    _core.LineError.TOO_FEW_COLUMNS: "needs two node ids",
    _core.LineError.NEGATIVE: "a node id is negative",
    _core.LineError.NOT_A_NUMBER: "a node id is not a whole number",
    _core.LineError.EMPTY_COLUMN: "an empty column; the first two have the node ids",
    _core.LineError.TOO_LARGE: "a node id is 2^63 or more",
    _core.LineError.CARRIAGE_RETURN: "a carriage return inside a line; lines end with a line feed",
}


def edgelist_source(
    path: str | os.PathLike[str],
    *,
    num_nodes: int | None = None,
    skip_lines: int = 0,
    attributes: Callable[[int], Attributes] = no_attributes,
) -> GraphSource:
    """Ids are kept where `num_nodes` is given, and compacted otherwise."""
    path = Path(path)
    return GraphSource(
        name=str(path),
        edges=_edges(path, skip_lines),
        num_nodes=num_nodes,
        attributes=attributes,
        total=path.stat().st_size,
        unit="B",
    )


def _edges(path: Path, skip_lines: int) -> Iterator[EdgeChunk]:
    sources = np.empty(_EDGES_PER_CHUNK, np.int64)
    targets = np.empty(_EDGES_PER_CHUNK, np.int64)
    line = skip_lines  # lines before the text at hand
    any_edge = False
    with _TextBlocks(path, skip_lines) as blocks:
        for text, final in blocks:
            done = 0
            while done < len(text):
                parsed = _core.parse_edges(text[done:], final, sources, targets)
                any_edge = any_edge or parsed.edges > 0
                if parsed.error != _core.LineError.NONE:
                    rest = text[done + parsed.consumed :]
                    _raise(path, line + parsed.lines, rest, parsed.error, first=not any_edge)
                if parsed.consumed == 0:
                    break  # an unfinished line: it comes again with the next block
                yield EdgeChunk(
                    sources[: parsed.edges].copy(),
                    targets[: parsed.edges].copy(),
                    _line_numbers(text[done:], line),
                    blocks.advanced(),
                )
                line += parsed.lines
                done += parsed.consumed
            blocks.keep(text[done:], line)


def _line_numbers(text: NDArray[np.uint8], lines_before: int) -> Callable[[int], str]:
    """Places of the edges in a text: looked for only when a message needs one."""

    def place(edge: int) -> str:
        for number, line in enumerate(text.tobytes().split(b"\n"), lines_before + 1):
            content = line.lstrip(b" \t\r")
            if content and content[:1] not in (b"#", b"%"):
                if edge == 0:
                    return f"line {number}"
                edge -= 1
        raise AssertionError("the text has fewer edges")

    return place


def _raise(
    path: Path,
    lines_before: int,
    rest: NDArray[np.uint8],
    error: _core.LineError,
    *,
    first: bool,
) -> None:
    line = rest[:_MOST_SHOWN_BYTES].tobytes().split(b"\n")[0]
    where = f"line {lines_before + 1}"
    if _is_binary(line):
        kind = next((kind for magic, kind in _KINDS.items() if line.startswith(magic)), "no text")
        raise IngestError(path, where, f"{kind} (it begins with {line[:12].hex(' ')})")
    text = line.decode("utf8", "ignore")
    what = f"{_WHAT[error]} (got {shown(text)})"
    if first and any(char.isalpha() for char in text):
        skipped = lines_before + 1
        what += f"; if it is a header, pass over it: --skip-lines {skipped} (skip_lines={skipped})"
    raise IngestError(path, where, what)


_MOST_SHOWN_BYTES = 200
_KINDS = {
    b"PK\x03\x04": "a zip archive; an .npz file is imported by `outcrop import npz`, others have "
    "to be unpacked",
    b"\x93NUMPY": "a .npy file, not an edge list; pairs of it become one with np.savetxt",
    b"BZh": "packed by bzip2; unpack it, or pack it with gzip",
    b"\xfd7zXZ": "packed by xz; unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it, or pack it with gzip",
    b"\xff\xfe": "text in UTF-16; write it in UTF-8",
    b"\xfe\xff": "text in UTF-16; write it in UTF-8",
}


def _is_binary(line: bytes) -> bool:
    """Whether what begins a line is no text in UTF-8 that a terminal can show."""
    text = line.decode("utf8", "replace")
    if len(line) == _MOST_SHOWN_BYTES:  # it may end within a character
        text = text.rstrip("\ufffd")
    return not text.replace("\t", "").replace("\r", "").isprintable() or "\ufffd" in text


class _TextBlocks:
    """A file's text in blocks that begin where the last unfinished line did."""

    def __init__(self, path: Path, skip_lines: int) -> None:
        self._path = path
        self._raw: BinaryIO = open(path, "rb")  # closed by __exit__
        packed = self._raw.read(2) == b"\x1f\x8b"
        self._raw.seek(0)
        self._stream: BinaryIO = gzip.open(self._raw) if packed else self._raw  # type: ignore[assignment]
        self._rest = b""
        self._told = 0
        self._skip_lines = skip_lines

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], bool]]:
        """(text, whether it is the last)."""
        for line in range(self._skip_lines):
            self._check_line(self._read(lambda: self._stream.readline(_MOST_LINE_BYTES)), line)
        while True:
            data = self._read(lambda: self._stream.read(_READ_BYTES))
            text = self._rest + data
            if text:
                yield np.frombuffer(text, dtype=np.uint8), not data
            if not data:
                return

    def _read(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise IngestError(
                self._path, f"byte {self._raw.tell()}", f"damaged or cut off: {error}"
            ) from error

    def keep(self, rest: NDArray[np.uint8], lines_before: int) -> None:
        """What the next block begins with: an unfinished line."""
        self._rest = rest.tobytes()
        self._check_line(self._rest, lines_before)

    def _check_line(self, line: bytes, lines_before: int) -> None:
        """A line is held in memory, so it has to end."""
        if len(line) >= _MOST_LINE_BYTES:
            raise IngestError(
                self._path, f"line {lines_before + 1}", f"has {_MOST_LINE_BYTES} bytes or more"
            )

    def advanced(self) -> int:
        """Bytes of the file that were read since the last call."""
        at = self._raw.tell()
        moved, self._told = at - self._told, at
        return moved

    def __enter__(self) -> _TextBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._raw.close()
