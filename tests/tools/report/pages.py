"""A page, taken apart as a reader would see it: tables with exact numbers, the data, the tags."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "input"}


class Parsed(HTMLParser):
    """Tables by caption: rows of cells; a number's cell is its exact value, another its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[Any]]] = {}
        self.ancestors: dict[str, list[str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, str] = {}
        self._caption = self._cell = ""
        self._value: float | None = None
        self._script: str | None = None
        self.data: Any = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script" and values.get("type") == "application/json":
            self._script = ""
        if tag == "caption":
            self._caption = ""
        if tag == "tr":
            self.tables[self._caption].append([])
        if tag in ("td", "th"):
            self._cell, self._value = "", None
        if tag == "data":
            self._value = float(values["value"] or "nan")

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        if self._script is not None:
            self._script += data
        elif self.open[-1] == "caption":
            self._caption += data
        self._cell += data
        self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes nothing"
        if tag == "caption":
            assert self._caption not in self.tables
            self.tables[self._caption] = []
            self.ancestors[self._caption] = list(self.open)
        if tag in ("td", "th"):
            cell = self._cell if self._value is None else self._value
            self.tables[self._caption][-1].append(cell)
        if tag == "script" and self._script is not None:
            self.data, self._script = json.loads(self._script), None

    def rows(self, caption: str) -> list[dict[str, Any]]:
        """The table's body, each row by the names of the columns."""
        head, *body = self.tables[caption]
        return [dict(zip(head, row, strict=True)) for row in body]
