"""Markup: HTML whose every text is escaped, because only `tag` can make it.

A record is untrusted: what is not `Html` becomes text, never markup.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence

from outcrop.tools.report import formats


class Html(str):
    """Markup that is safe as it stands."""

    __slots__ = ()


def escape(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object]) -> Html:
    return Html("".join(escape(part) for part in parts))


_VOID = {"input", "meta"}


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """`tag("td", "<b>", class_="n")` -> `<td class="n">&lt;b&gt;</td>`; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def data(value: float | None, shown: str) -> Html:
    """A number as people read it, with all its digits beside it for machines."""
    if value is None:
        return tag("span", shown, class_="unknown")
    exact = repr(value) if math.isfinite(value) else str(value)
    return tag("data", shown, value=exact, title=exact if exact != shown else None)


def _marked(read: Callable[[float | None], str]) -> Callable[[float | None], Html]:
    """A format of numbers, as markup."""
    return lambda value: data(value, read(value))


seconds = _marked(formats.seconds)
size = _marked(formats.size)
number = _marked(formats.number)
times = _marked(formats.times)
share = _marked(formats.share)


def table(
    caption: str, head: list[str], rows: Iterable[Sequence[object]], *, left: int = 1
) -> Html:
    """The first `left` columns are texts, the rest numbers. Scrolls by itself where it is wide."""
    names = tag(
        "tr",
        *(tag("th", name, scope="col", class_=_side(i, left)) for i, name in enumerate(head)),
    )
    body = [
        tag("tr", *(
            tag("th", cell, scope="row") if i == 0 else tag("td", cell, class_=_side(i, left))
            for i, cell in enumerate(row)
        ))
        for row in rows
    ]  # fmt: skip
    made = tag("table", tag("caption", caption), tag("thead", names), tag("tbody", *body))
    return tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _side(index: int, left: int) -> str | None:
    return None if index < left else "n"


def figure(title: str, text: object, drawing: Html, table_: Html, *, anchor: str) -> Html:
    """A drawing, and the same numbers as a table."""
    return tag(
        "section",
        tag("h2", title),
        tag("p", text, class_="lead"),
        tag("figure", drawing, aria_label=title),
        tag("details", tag("summary", "As a table"), table_),
        id=anchor,
    )


def numbers(title: str, text: object, table_: Html, *, anchor: str) -> Html:
    """A table, where there is too little to draw."""
    return tag("section", tag("h2", title), tag("p", text, class_="lead"), table_, id=anchor)


def percent(value: float) -> str:
    return f"{value:.4g}%"
