"""HTML: records -> one file that opens anywhere, without a network.

All is drawn here; the page's script only adds pointers and zoom, so the page also prints and works
where scripts are off. A record is untrusted: `markup.tag` escapes every text, and the page's policy
allows no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from outcrop._version import __version__
from outcrop.store.locks import replace_synced
from outcrop.tools.report import bars, curves, facts, formats
from outcrop.tools.report.headline import headline, tiles
from outcrop.tools.report.markup import Html, join, tag
from outcrop.tools.report.summary import Comparison, compare
from outcrop.tools.report.timeline import timeline_figure

Records = Mapping[str, Mapping[str, Any]]
"""Records as RunRecord.as_dict gives them, by the names of their files."""


def write_report(records: Records, bench: Mapping[str, Any] | None, path: Path) -> None:
    """Draw them into one HTML file.

    `bench` is the content of bench.json, whose rows name records by file. StoreError where a
    record is none.
    """
    replace_synced(path.resolve(), render(records, bench).encode())


def render(records: Records, bench: Mapping[str, Any] | None = None) -> str:
    """The page."""
    comparison = compare(records, bench)
    script = _asset("page.js")
    body = join(
        [
            _header(comparison),
            tag("main", *(section for section in _sections(comparison) if section is not None)),
            _footer(comparison),
            _data(records, bench),
            tag("script", Html(script)),
        ]
    )
    page = tag("html", _head(comparison, script), tag("body", body), lang="en")
    return f"<!doctype html>\n{page}\n"


def _asset(name: str) -> str:
    return files("outcrop.tools.report").joinpath(name).read_text(encoding="utf-8")


def _head(comparison: Comparison, script: str) -> Html:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; script-src 'sha256-{digest}'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", _title(comparison)),
        tag("style", Html(_asset("page.css"))),
    )


def _title(comparison: Comparison) -> str:
    names = [line.name for line in comparison.lines if line.kind != "limit"]
    return "Outcrop: " + ", ".join(names[:6])


def _header(comparison: Comparison) -> Html:
    store = comparison.origin.store
    about = [Path(str(store.get("path") or "")).name]
    for name, unit in (("nodes", "nodes"), ("edges", "edges"), ("dim", "dimensions")):
        if isinstance(store.get(name), int):
            about.append(f"{formats.number(store[name])} {unit}")
    model = comparison.origin.configuration.get("model")
    if model is not None:
        about.append("data preparation alone" if model == "none" else f"model {model}")
    numbers = (
        tag("div", tag("dt", what), tag("dd", number), tag("dd", told, class_="told"))
        for what, number, told in tiles(comparison)
    )
    return tag(
        "header",
        tag("p", "Outcrop report", class_="brand"),
        tag("h1", headline(comparison)),
        tag("p", " · ".join(part for part in about if part), class_="about"),
        tag("dl", *numbers, class_="tiles"),
    )


def _sections(comparison: Comparison) -> list[Html | None]:
    return [
        bars.times_figure(comparison),
        facts.results_section(comparison),
        bars.stages_figure(comparison),
        bars.traffic_figure(comparison),
        bars.sizes_figure(comparison),
        bars.hits_figure(comparison),
        timeline_figure(comparison),
        curves.history_figure(comparison),
        curves.series_figure(comparison),
        facts.memory_section(comparison),
        facts.epochs_section(comparison),
        facts.origin_section(comparison),
    ]


def _footer(comparison: Comparison) -> Html:
    made = f"Measured {comparison.origin.created}, drawn by Outcrop {__version__}."
    return tag("footer", made, " The records themselves are in this file, as JSON (id records).")


def _data(records: Records, bench: Mapping[str, Any] | None) -> Html:
    """The records as JSON that cannot end its own element."""
    text = json.dumps(_finite({"records": records, "bench": bench}), separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return tag("script", Html(text), type="application/json", id="records")


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
