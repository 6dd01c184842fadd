"""Loading, the terminal and the command: what is refused, with which words; what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.errors import StoreError
from outcrop.tools.report import compare, load, print_report
from tests.tools.report.samples import make_bench, make_record, write_bench
from tests.tools.report.test_html import prepared_bench


def write(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    values = make_record("direct").as_dict()
    change(values)
    path = folder / "run.json"
    path.write_text(json.dumps(values))
    return path


def test_a_folder_takes_records_and_leaves_the_rest(tmp_path: Path) -> None:
    write_bench(tmp_path, repeats=1)
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "notes.txt").write_text("no JSON")
    loaded = load(tmp_path)
    assert len(loaded.records) == 4 and loaded.bench is not None
    with pytest.raises(StoreError, match=r"other.json: neither a record nor a benchmark"):
        load([tmp_path / "other.json"])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no records here; outcrop train --record"):
        load(tmp_path)


@pytest.mark.parametrize("text", ['{"format": "outcrop-rec', "", "[" * 100_000, "\udcff"])
def test_broken_json_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreError, match=r"run\.json: not a record"):
        load(tmp_path)


def test_another_version_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, lambda values: values.update(version=7))
    with pytest.raises(StoreError, match=r"run\.json: a record of version 7; this Outcrop reads 1"):
        load(path)
    bench, _ = make_bench(1)
    path.write_text(json.dumps(bench | {"version": 2}))
    with pytest.raises(StoreError, match=r"run\.json: a benchmark of version 2"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["loader"]["epochs"][0].update(rows="x"), r"epochs\[0\]\.rows: a whole number"),
        (lambda v: v["loader"].update(epochs=3), r"loader\.epochs: a list was expected \(got 3\)"),
        (lambda v: v["loader"].update(events=[["a", 1]]), r"events\[0\]: \[stage, batch, begin"),
        (lambda v: v["series"].update(cpu_share=[1.0]), r"series: columns of equal length"),
        (lambda v: v.update(kind="party"), r"kind: one of train, bench"),
        (lambda v: v.update(name=None), r"name: a text was expected \(got null\)"),
        (lambda v: v.update(process=[1]), r"process: an object was expected"),
        (lambda v: v.update(command="rm"), r"command: a list was expected"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(StoreError, match=rf"run\.json: .*{message}"):
        load(write(tmp_path, change))


def printed(width: int = 80) -> str:
    bench, records = make_bench()
    bench["rows"][1]["name"] = "[red]mmap[/]\x1b[2J"
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        print_report(compare(records, bench), console)
    return capture.get()


def test_the_terminal_shows_all_and_fits_80_columns() -> None:
    text = printed()
    assert max(map(len, text.splitlines())) <= 80
    headline, tables = text.split("\n\n", 1)
    assert headline.startswith("belady took 66.7 s for 40 batches: 1.55×")  # noqa: RUF001
    lines = {line.split()[0]: line for line in reversed(tables.splitlines()) if line.strip()}
    assert "66.7 s" in lines["belady"] and "1.71×" in lines["belady"]  # noqa: RUF001
    assert "absent" in lines["graphbolt"] and "failed" in lines["ginex"]
    assert "scaled up from 10 batches" in text and "67.2 %" in text
    assert "Checked over 4 batches: the contents are the same." in text


def test_the_terminal_says_what_was_prepared_and_when_it_has_paid() -> None:
    bench, records = prepared_bench(100.0)
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        print_report(compare(records, bench), console)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    assert "after 100 s of preparation" in " ".join(text.split())
    belady = next(line for line in text.splitlines() if line.split()[1:3] == ["100", "s"])
    assert belady.split()[3:5] == ["44.0", "MB"]
    assert "108 batches (1.35 epochs) against direct" in belady


def test_names_are_neither_markup_nor_control_characters() -> None:
    text = printed()
    assert "[red]mmap[/]" in text and "\x1b" not in text


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    folder = write_bench(tmp_path / "results", repeats=2)
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert "belady" in done.output and (folder / "report.html").is_file()
    other = tmp_path / "other.html"
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(other), "--json"])
    values = json.loads(done.stdout)
    assert values["report"] == str(other) and other.is_file()
    bench, _ = make_bench(2)
    assert [line["seconds"] for line in values["lines"]] == [r["seconds"] for r in bench["rows"]]


def test_the_command_fails_with_a_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1 and "no records here" in done.stderr
    assert not (tmp_path / "report.html").exists()
