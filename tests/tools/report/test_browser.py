"""The page in a real browser: no complaints, no network, no sideways scrolling, no injection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outcrop.tools.report import write_report
from tests.tools.report.browser import Browser, Page
from tests.tools.report.samples import make_bench, make_train_record
from tests.tools.report.test_html import evil_bench


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    bench, records = make_bench()
    write_report(records, bench, folder / "bench.html")
    train = {f"{n}.json": make_train_record(n).as_dict() for n in ("memory", "direct", "belady")}
    write_report(train, None, folder / "train.html")
    evil, evil_records = evil_bench()
    write_report(evil_records, evil, folder / "evil.html")
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["bench", "train", "evil"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_renders_without_complaints_or_overflow(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    page = Page(browser, pages[name], width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .lanes') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 90))"  # noqa: E501
    assert page.evaluate(wide) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(251, 251, 249)", "dark": "rgb(20, 23, 26)"}[scheme]
    assert page.complaints == []
    assert page.requests == [pages[name].as_uri()]


def test_texts_of_records_do_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    page = Page(browser, pages["evil"], 1280, "light")
    page.move_to(".track [data-tip]")
    page.move_to(".plot svg")
    assert page.evaluate("typeof owned") == "undefined"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2


def test_the_pointer_tells_batch_and_value(browser: Browser, pages: dict[str, Path]) -> None:
    page = Page(browser, pages["bench"], 1280, "light")
    page.move_to(".lane i:nth-child(4)")
    assert page.evaluate("document.querySelector('.tip').textContent").startswith("batch 3, sample")
    page.move_to(".plot svg")
    assert "memory:" in page.evaluate("document.querySelector('.tip').textContent")


def test_zoom_widens_the_timeline_only(browser: Browser, pages: dict[str, Path]) -> None:
    page = Page(browser, pages["bench"], 390, "light")
    page.evaluate(
        "(() => { const i = document.querySelector('.zoom input'); i.value = 20;"
        "i.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate("document.querySelector('.inner').offsetWidth") > 2000
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_drawn_lengths_are_proportional(browser: Browser, pages: dict[str, Path]) -> None:
    page = Page(browser, pages["bench"], 1280, "light")
    widths = page.evaluate(
        "[...document.querySelectorAll('#time .fill')].map(e => e.getBoundingClientRect().width)"
    )
    bench, _ = make_bench()
    seconds = [sorted(row["seconds"])[len(row["seconds"]) // 2] for row in bench["rows"][:5]]
    for width, value in zip(widths, seconds, strict=False):
        assert width / widths[4] == pytest.approx(value / seconds[4], abs=0.003)
