"""The page: its numbers are the records', and no text of a record becomes markup."""

from __future__ import annotations

import copy
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.errors import StoreError
from outcrop.tools.report import load, render, write_report
from tests.stores import make_random_store
from tests.tools.report.pages import Parsed
from tests.tools.report.samples import BATCHES, SHAPES, make_bench, make_record, make_train_record

EVIL = "\"'></script></title></style><script>owned=1</script><img src=x onerror=owned=1><b>&amp;"


def page_of_bench() -> tuple[Parsed, dict[str, Any], dict[str, dict[str, Any]]]:
    bench, records = make_bench()
    return Parsed(render(records, bench)), bench, records


def test_every_epochs_numbers_are_the_records() -> None:
    page, _, records = page_of_bench()
    shown = page.rows("Every epoch")
    epochs = [(f, e) for f, record in records.items() for e in record["loader"]["epochs"]]
    assert len(shown) == len(epochs)
    for row, (file, epoch) in zip(shown, epochs, strict=True):
        assert row["record"] == file
        assert (row["seconds"], row["stall"]) == (epoch["seconds"], epoch["stall_seconds"])
        for name in ("batches", "seeds", "sampled_edges", "rows", "row_bytes", "read_requests",
                     "bytes_wanted", "bytes_read", "drive_bytes"):  # fmt: skip
            assert row[name.replace("_", " ")] == epoch[name]
        assert row["amplification"] == (epoch["read_amplification"] or "–")  # noqa: RUF001


def test_reads_are_shown_by_size() -> None:
    page, _, records = page_of_bench()
    rows = {row["requests"]: row for row in page.rows("Sizes")}
    assert set(rows) == {"direct", "belady"}  # the others left it to the page cache
    epoch = records["direct-0.json"]["loader"]["epochs"][0]
    few = epoch["read_requests"] // 10
    repeats = sum(file.startswith("direct-") for file in records)
    sizes = ("to 32 KiB", "to 256 KiB", "to 1 MiB", "more")
    assert [rows["direct"][size] for size in sizes] == [few * repeats] * 3 + [0]
    assert rows["direct"]["on average"] == epoch["bytes_read"] // epoch["read_requests"]
    for found in records.values():  # older records do not say
        del found["loader"]["epochs"][0]["read_sizes"]
    assert "Sizes of reads" not in render(records, None)


def test_results_are_medians_ratios_and_multiples() -> None:
    page, bench, records = page_of_bench()
    rows = {row[""]: row for row in page.rows("Results")}
    base = statistics.median(bench["rows"][0]["seconds"])
    for row in bench["rows"][: len(SHAPES)]:
        shown, epoch = rows[row["name"]], records[row["records"][0]]["loader"]["epochs"][0]
        median = statistics.median(row["seconds"])
        assert shown["median"] == median
        assert shown["to memory"] == pytest.approx(median / base)
        if row["bound_seconds"]:
            assert shown["to bound"] == pytest.approx(median / row["bound_seconds"])
        peaks = [records[file]["process"]["peak_rss_bytes"] for file in row["records"]]
        assert (shown["peak RSS"], shown["rows"]) == (max(peaks), epoch["rows"])
        assert shown["contents"] == "same"
    belady = records["belady-0.json"]["loader"]["epochs"][0]
    assert rows["belady"]["wanted"] == belady["bytes_wanted"]
    assert rows["belady"]["read"] == belady["bytes_read"]
    assert rows["belady"]["hits"] == sum(belady["hits"].values()) / belady["rows"]
    assert rows["mmap"]["read"] == records["mmap-0.json"]["loader"]["epochs"][0]["drive_bytes"]
    assert rows["graphbolt peer"]["median"] == "absent"
    assert rows["ginex peer"]["median"] == "failed"


def test_stages_hits_and_events_are_the_records() -> None:
    page, _, records = page_of_bench()
    own = [r["loader"]["epochs"][0] for f, r in records.items() if f.startswith("belady")]
    stages = {row[""]: row for row in page.rows("Stages")}["belady"]
    for name in own[0]["stages"]:
        mean = statistics.fmean(epoch["stages"][name]["busy_seconds"] for epoch in own)
        assert stages[name] == pytest.approx(mean)
    assert stages["stall"] == pytest.approx(own[0]["stall_seconds"])
    hits = page.rows("Hits")[0]
    assert {tier: hits[tier] for tier in own[0]["hits"]} == own[0]["hits"]
    events = [row for row in page.rows("Timeline") if row[""] == "belady"]
    assert len(events) == 32 * len(SHAPES["belady"]["stages"])
    known = {tuple(event[:2]): event[2:] for event in records["belady-0.json"]["loader"]["events"]}
    for event in events:
        assert (event["begin"], event["end"]) == known[event["stage"], event["batch"]]


def test_series_and_history_are_the_records() -> None:
    record = make_train_record("direct").as_dict()
    page = Parsed(render({"run.json": record}))
    for name, column in record["series"].items():
        assert [row[name.replace("_", " ")] for row in page.rows("Series")] == column
    for title in ("Batches ready for the training loop", "Batches waiting for gather", "GPU busy"):
        assert title in page.text["h3"]
    for row, epoch in zip(page.rows("Learning"), record["history"], strict=True):
        assert row["epoch"] == epoch["epoch"] + 1
        assert all(row[name] == epoch[name] for name in ("loss", "val", "test", "seconds"))


def test_a_single_epoch_is_numbers_and_not_a_curve_of_one_point() -> None:
    record = make_train_record("direct", epochs=1).as_dict()
    record["series"] = {name: column[:1] for name, column in record["series"].items()}
    page = Parsed(render({"run.json": record}))
    assert not [tag for tag, _ in page.tags if tag == "polyline"]
    assert "Loss by epoch" not in page.text["h3"] and "GPU busy" not in page.text["h3"]
    assert page.rows("Learning")[0]["loss"] == 2.0 and len(page.rows("Series")) == 1
    assert "details" not in page.ancestors["Learning"]


def test_a_run_of_one_epoch_is_a_dot_beside_curves_of_others() -> None:
    records = {f"{n}.json": make_train_record("direct", epochs=n).as_dict() for n in (1, 6)}
    page = Parsed(render(records))
    drawn = [a for tag, a in page.tags if tag == "polyline"]
    dots = [a for a in drawn if "dot" in str(a["class"]).split()]
    assert len(dots) == 6  # loss, val and test, by epoch and over time
    assert all("1.json" in str(a["data-name"]) for a in dots)


def test_the_records_are_in_the_page() -> None:
    page, bench, records = page_of_bench()
    assert page.data == json.loads(json.dumps({"records": records, "bench": bench}))


def test_the_headline_says_who_won() -> None:
    bench, records = make_bench()
    text = Parsed(render(records, bench)).text
    assert text["h1"].startswith("belady took 66.7 s for 40 batches: 1.55× as fast as direct")  # noqa: RUF001
    assert "1.0 GB" in text["dd"] and "equal" in text["dd"]
    bench["check"]["equal"] = False
    bench["check"]["digests"]["belady"] = "another"
    page = Parsed(render(records, bench))
    assert "DIFFERENT" in page.text["dd"]
    contents = {row[""]: row["contents"] for row in page.rows("Results")}
    assert (contents["belady"], contents["direct"]) == ("differs", "same")


def prepared_bench(
    seconds: float, *, batches: int | None = None, found: bool = False, repeats: bool = False
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Of which belady (66.7 s, direct: 103) prepares for so long, and takes 44 MB of disk."""
    bench, records = make_bench()
    bench["configuration"]["epoch_batches"] = 80
    for name, record in records.items():
        if name.startswith("belady"):
            record["process"]["disk_used_bytes"] = 44_000_000
            record["loader"]["plan"] = {"batches": batches, "cycle": repeats}
            record["loader"]["prepare_seconds"] = 0.0 if found else seconds
            record["layouts"] = [{"name": "pack-1", "seconds": seconds, "made": not found}]
    return bench, records


@pytest.mark.parametrize("found", [False, True])
def test_preparation_disk_and_when_it_has_paid_stand_beside_the_time(found: bool) -> None:
    bench, records = prepared_bench(100.0, found=found)
    page = Parsed(render(records, bench))
    more, less = 100.0 - 1.25, statistics.median(bench["rows"][2]["seconds"])
    less -= statistics.median(bench["rows"][3]["seconds"])
    batches = math.ceil(BATCHES * more / less)
    paid = f"{batches} batches ({batches / 80:.2f} epochs)"
    assert page.text["h1"].startswith(
        "belady took 66.7 s for 40 batches, after 100 s of preparation and 44.0 MB of disk: 1.5"
    )
    assert page.text["h1"].endswith(f"; its preparation has paid against direct after {paid}.")
    result = {row[""]: row for row in page.rows("Results")}["belady"]
    assert (result["prepa\u00adration"], result["disk used"]) == (100.0, 44_000_000)
    assert result["paid after"] == f"{paid} against direct"
    bars = [a for _, a in page.tags if a.get("class") == "prepare"]
    assert [bar["data-tip"] for bar in bars] == ["belady: 100 s of preparation"]
    assert {row[""]: row for row in page.rows("Time")}["belady"]["preparation"] == 100.0
    assert "of belady, 44.0 MB of disk, paid after" in page.text["dd"]


def test_preparation_that_its_batches_do_not_pay_for_is_said_not_to() -> None:
    text = Parsed(render(*reversed(prepared_bench(100.0, batches=100)))).text["h1"]
    assert text.endswith("does not pay against direct within the 100 batches that it is for.")
    text = Parsed(render(*reversed(prepared_bench(100.0, batches=100, repeats=True)))).text["h1"]
    assert "has paid against direct after 108 batches" in text


def test_disk_of_a_record_that_did_not_count_it_is_not_zero() -> None:
    bench, records = make_bench()
    for record in records.values():
        del record["layouts"]
    records["belady-0.json"]["loader"]["plan"] = {"trace_bytes": 3_000, "pack_bytes": 4_000}
    records["belady-0.json"]["loader"]["prepare_seconds"] = 29.3
    results = {row[""]: row for row in Parsed(render(records, bench)).rows("Results")}
    assert results["direct"]["disk used"] == "–"  # noqa: RUF001
    assert results["belady"]["disk used"] == 7_000
    assert results["belady"]["prepa\u00adration"] == 29.3


def test_what_lies_within_the_spread_is_not_called_faster() -> None:
    bench, records = make_bench()
    bench["rows"][3]["seconds"] = [90.0, 95.0, 110.0]
    text = Parsed(render(records, bench)).text["h1"]
    assert "not clearly faster than direct" in text


def test_nothing_is_fetched_and_all_is_closed() -> None:
    page, _, _ = page_of_bench()
    assert page.open == []
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset"} & set(attributes)


def replace_texts(value: Any, keep: tuple[str, ...]) -> Any:
    """Every text and every free key of a record, made evil."""
    if isinstance(value, dict):
        free = ("hits", "stages", "charges", "configuration", "machine", "versions", "digests",
                "store", "drive", "loader", "process", "series")  # fmt: skip
        made = {}
        for key, item in value.items():
            made[key] = item if key in keep else replace_texts(item, keep)
            if key in free and isinstance(item, dict) and key not in ("loader", "series"):
                first = next(iter(item.values()), 1)
                made[key] = {**made[key], EVIL: first if key != "drive" else EVIL}
        return made
    if isinstance(value, list):
        return [replace_texts(item, keep) for item in value]
    return EVIL if isinstance(value, str) else value


def evil_bench() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    bench, records = make_bench(1)
    keep = ("format", "version", "kind", "status", "records", "stream")
    evil = {name: replace_texts(record, keep) for name, record in records.items()}
    evil[EVIL] = replace_texts(make_train_record("direct").as_dict(), keep)
    for record in evil.values():
        record["series"][EVIL] = record["series"]["seconds"]
    return replace_texts(bench, keep), evil


def test_texts_of_records_are_never_markup() -> None:
    bench, records = evil_bench()
    page = Parsed(render(records, bench))
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 2 and "img" not in names
    assert "onerror" not in {key for _, attributes in page.tags for key in attributes}
    assert page.data["bench"]["rows"][0]["name"] == EVIL
    assert EVIL in page.text["title"]


def test_nan_is_shown_and_the_data_stay_json() -> None:
    record = make_train_record("direct").as_dict()
    record["history"][2]["loss"] = math.nan
    record["series"]["cpu_share"][0] = math.inf
    page = Parsed(render({"run.json": record}))
    assert math.isnan(page.rows("Learning")[2]["loss"])
    assert page.data["records"]["run.json"]["history"][2]["loss"] is None


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of everything in a record; of lists, of the first entry."""
    items = list(value.items()) if isinstance(value, dict) else []
    items = list(enumerate(value))[:1] if isinstance(value, list) else items
    found = [path] if path else []
    return found + [leaf for key, item in items for leaf in leaves(item, (*path, key))]


def test_whatever_a_value_is_the_page_is_drawn_or_the_place_named() -> None:
    bench, records = make_bench(1)
    whole = json.loads(json.dumps({"records": {"mmap-0.json": records["mmap-0.json"]}}))
    record = whole["records"]["mmap-0.json"]
    record["history"] = make_train_record("mmap", epochs=2).history
    bench["rows"] = [bench["rows"][1], bench["rows"][5], bench["rows"][8]]
    record["loader"]["events"] = record["loader"]["events"][:4]
    record["series"] = {name: column[:3] for name, column in record["series"].items()}
    whole["bench"] = bench
    odds: list[Any] = [None, "x", -1, 1e308, math.nan, [], {}, 10**400]
    drawn = 0
    for path in leaves(whole):
        if path[-1] in ("records", "bench", "mmap-0.json"):
            continue
        for odd in odds:
            changed = copy.deepcopy(whole)
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = odd
            try:
                render(changed["records"], changed["bench"])
                drawn += 1
            except StoreError as error:
                assert ".json: " in str(error), error
    assert drawn > 100


def test_a_peers_record_may_know_almost_nothing() -> None:
    record = make_record("mmap").as_dict()
    record["loader"] = {"epochs": [{"stream": "train", "epoch": 0, "seconds": 3.5}]}
    record["series"], record["process"] = {}, {"peak_rss_bytes": None}
    page = Parsed(render({"peer.json": record}))
    assert page.rows("Results")[0]["median"] == 3.5


def test_runs_of_one_strategy_are_told_apart() -> None:
    record = make_train_record("direct").as_dict()
    page = Parsed(render({"a.json": record, "b.json": copy.deepcopy(record)}))
    assert [row[""] for row in page.rows("Results")] == ["direct (a.json)", "direct (b.json)"]


def test_a_benchmark_whose_record_is_gone_is_refused() -> None:
    bench, records = make_bench(1)
    del records["direct-0.json"]
    with pytest.raises(StoreError, match=r"direct: its record direct-0.json is not there"):
        render(records, bench)


def test_a_real_run(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s.outcrop").close()
    for strategy in ("direct", "mmap"):
        done = CliRunner().invoke(app, [
            "train", str(tmp_path / "s.outcrop"), "--strategy", strategy, "--epochs", "2",
            "--layers", "2", "--num-neighbors", "5,5", "--hidden", "8", "--batch-size", "50",
            "--memory", "200MB", "--device", "cpu", "--record", str(tmp_path / f"{strategy}.json"),
        ])  # fmt: skip
        assert done.exit_code == 0, done.output
    loaded = load(tmp_path)
    write_report(loaded.records, loaded.bench, tmp_path / "report.html")
    page = Parsed((tmp_path / "report.html").read_text())
    direct = json.loads((tmp_path / "direct.json").read_text())
    seconds = [e["seconds"] for e in direct["loader"]["epochs"] if e["stream"] == "train"]
    result = {row[""]: row for row in page.rows("Results")}["direct"]
    assert result["median"] == statistics.median(seconds)
    first = page.rows("Every epoch")[0]
    assert first["bytes read"] == direct["loader"]["epochs"][0]["bytes_read"]
    assert page.data["records"]["direct.json"] == direct


def test_one_box_per_batch_of_the_timeline() -> None:
    record = make_record("direct").as_dict()
    page = Parsed(render({"run.json": record}))
    tips = [a["data-tip"] for _, a in page.tags if "data-tip" in a]
    assert sum(str(tip).startswith("batch 7, ") for tip in tips) == len(SHAPES["direct"]["stages"])
    assert BATCHES > 32 and not any(str(tip).startswith("batch 32,") for tip in tips)
