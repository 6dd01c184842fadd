"""Summary: records and a benchmark -> one line per strategy, peer and limit, and who won."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outcrop.errors import StoreError
from outcrop.tools.report import formats
from outcrop.tools.report.model import Bench, Epoch, Origin, Row, Run, parse_bench, parse_run

STAGES = ("sample", "inspect", "switch", "gather", "cache update", "transfer", "compute")
SIZES = ("up to 4 KiB", "to 32 KiB", "to 256 KiB", "to 1 MiB", "more")
"""Sizes of reads, as reports tell them apart."""
_SIZE_ENDS = (0, 3, 6, 8)
"""The last place of each, but the last, among a record's counts."""
_WORTH_A_WORD = 0.05
"""A share of the batches' time: below it, preparation is opening files."""


@dataclass(frozen=True)
class Line(Row):
    """One strategy, peer or limit, over all its runs."""

    runs: list[Run] = field(default_factory=list)
    digest: str | None = None
    check: str = ""
    """same, differs, or nothing where it was not checked."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The fastest and the slowest; None where there is only one."""
        return (min(self.seconds), max(self.seconds)) if len(self.seconds) > 1 else None

    @property
    def multiple(self) -> float | None:
        """Its median time, in multiples of its physical bound."""
        return ratio(self.median, self.bound_seconds)

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs that its seconds are about: of training, or whatever the runs did first."""
        return [epoch for run in self.runs for epoch in main_epochs(run)]

    def mean(self, name: str) -> int | None:
        """The mean of a count, per epoch."""
        return _mean([epoch.counts[name] for epoch in self.epochs])

    @property
    def wanted_bytes(self) -> int | None:
        """What the disk engine was asked for; where it had nothing to do, what the rows take."""
        return _mean([wanted_read(epoch)[0] for epoch in self.epochs])

    @property
    def read_bytes(self) -> int | None:
        """What the disk engine read; where it had nothing to do, what page faults read."""
        return _mean([wanted_read(epoch)[1] for epoch in self.epochs])

    @property
    def amplification(self) -> float | None:
        known = [e.read_amplification for e in self.epochs if e.read_amplification is not None]
        if known:
            return statistics.mean(known)
        return ratio(self.read_bytes, self.wanted_bytes) if self.read_bytes else None

    @property
    def hits(self) -> dict[str, int]:
        """Per epoch, by tier."""
        tiers = dict.fromkeys(tier for epoch in self.epochs for tier in epoch.hits)
        return {tier: _mean([e.hits.get(tier, 0) for e in self.epochs]) or 0 for tier in tiers}

    @property
    def hit_share(self) -> float | None:
        """The share of wanted rows that were found in memory; None: not known."""
        return ratio(sum(self.hits.values()), self.mean("rows")) if self.hits else None

    @property
    def read_sizes(self) -> list[int]:
        """Reads of all its epochs by size, as SIZES names them; empty: none, or not known."""
        found = [0] * len(SIZES)
        for epoch in self.epochs:
            for size, count in enumerate(epoch.read_sizes):
                found[bisect.bisect_left(_SIZE_ENDS, size)] += count
        return found if sum(found) > 0 <= min(found) else []

    @property
    def prepare_seconds(self) -> float | None:
        """Before the first batch, as if nothing had been found prepared; None: not known."""
        if any(run.layouts is None for run in self.runs):
            # Old records: the first run prepared, if any did, and the others found it.
            return max((run.prepare_seconds or 0.0 for run in self.runs), default=None)
        found = [_prepared_anew(run) for run in self.runs]
        known = [value for value in found if value is not None and math.isfinite(value)]
        return statistics.median(known) if known else None

    @property
    def prepares(self) -> bool:
        """Whether its preparation is worth a word: some of the time, or some of the disk."""
        seconds, median = self.prepare_seconds or 0.0, self.median or 0.0
        return seconds > _WORTH_A_WORD * median or bool(self.disk_bytes)

    @property
    def prepared_batches(self) -> int | None:
        """How many its preparation is for; None: for any number of them, or not known."""
        counts = [run.plan.batches for run in self.runs if not run.plan.repeats]
        return min((count for count in counts if count is not None), default=None)

    @property
    def disk_bytes(self) -> int | None:
        """Beside the store, at most at a time: layouts that it made or found, and scratch."""
        known = [disk_bytes(run) for run in self.runs]
        return max((value for value in known if value is not None), default=None)

    @property
    def peak_bytes(self) -> int | None:
        """The highest peak of the process over its runs."""
        return max(filter(None, (run.process.get("peak_rss_bytes") for run in self.runs)),
                   default=None)  # fmt: skip

    def as_dict(self, relative: float | None, payoff: Payoff | None) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind, "status": self.status, "note": self.note,
            "seconds": self.seconds, "median_seconds": self.median, "scaled": self.scaled,
            "relative": relative,
            "bound_seconds": self.bound_seconds, "bound": self.bound, "multiple": self.multiple,
            "rows": self.mean("rows"), "bytes_wanted": self.wanted_bytes,
            "bytes_read": self.read_bytes, "read_amplification": self.amplification,
            "read_sizes": dict(zip(SIZES, self.read_sizes, strict=False)),
            "hits": self.hits, "peak_rss_bytes": self.peak_bytes, "digest": self.digest,
            "check": self.check, "prepare_seconds": self.prepare_seconds,
            "disk_used_bytes": self.disk_bytes,
            "payoff": asdict(payoff) if payoff else None,
        }  # fmt: skip


@dataclass(frozen=True)
class Payoff:
    """When the preparation of a strategy has paid, against another one."""

    against: str
    batches: int | None
    """None for training, whose lines are epochs."""
    epochs: float | None
    used_up: int | None = None
    """Where it does not pay: how many batches it is for. Then they are used up."""

    @property
    def text(self) -> str:
        """44 batches (0.22 epochs); or that it does not pay."""
        if self.used_up is not None:
            return f"not within its {formats.number(self.used_up)} batches"
        epochs = "" if self.epochs is None else f"{formats.number(self.epochs)} epochs"
        if self.batches is None:
            return epochs
        return f"{formats.number(self.batches)} batches" + (f" ({epochs})" if epochs else "")


@dataclass(frozen=True)
class Comparison:
    """All that a report shows."""

    lines: list[Line]
    runs: list[Run]
    bench: Bench | None

    @property
    def origin(self) -> Origin:
        return self.bench.origin if self.bench else self.runs[0].origin

    @property
    def measured(self) -> list[Line]:
        """Strategies and peers that have a time."""
        return [line for line in self.lines if line.kind != "limit" and line.median]

    @property
    def baseline(self) -> Line | None:
        return self.measured[0] if self.measured else None

    @property
    def contest(self) -> list[Line]:
        """The fastest first. What holds everything in memory does not compete, if others do."""
        ranked = sorted(self.measured, key=lambda line: line.median or 0.0)
        return [line for line in ranked if "memory" not in line.name] or ranked

    def relative(self, line: Line) -> float | None:
        """A line's median time, in multiples of the baseline's."""
        return ratio(line.median, self.baseline.median) if self.baseline else None

    @property
    def relative_name(self) -> str:
        """What tables call it."""
        return f"to {self.baseline.name}" if self.baseline else "relative"

    def first_runs(self, wanted: Callable[[Run], object]) -> list[tuple[str, Run]]:
        """The first run of each line that has what is wanted, by the line's name."""
        found = [(line.name, next(filter(wanted, line.runs), None)) for line in self.lines]
        return [(name, run) for name, run in found if run is not None]

    def payoff(self, line: Line) -> Payoff | None:
        """Against the fastest that is clearly slower and prepares less; None: there is none."""
        if not line.prepares or line.median is None:
            return None
        for other in self.contest:
            more = (line.prepare_seconds or 0.0) - (other.prepare_seconds or 0.0)
            if more > 0 and is_clearly_faster(line, other):
                return self._payoff(line, other, more / ((other.median or 0.0) - line.median))
        return None

    def _payoff(self, line: Line, other: Line, passes: float) -> Payoff:
        """`passes`: how often what the lines' seconds are about has to run until it pays."""
        measured = self.bench.setting("batches") if self.bench else None
        if not isinstance(measured, int) or not math.isfinite(passes):
            return Payoff(other.name, None, passes)
        batches = math.ceil(passes * measured)
        of_epoch = self.bench.setting("epoch_batches") if self.bench else None
        epochs = batches / of_epoch if isinstance(of_epoch, int) and of_epoch > 0 else None
        prepared = line.prepared_batches
        short = prepared is not None and batches > prepared
        return Payoff(other.name, batches, epochs, prepared if short else None)

    def as_dict(self) -> dict[str, Any]:
        lines = [line.as_dict(self.relative(line), self.payoff(line)) for line in self.lines]
        return {"lines": lines}


def compare(
    records: Mapping[str, Mapping[str, Any]], bench: Mapping[str, Any] | None
) -> Comparison:
    """Records by file name, and bench.json -> what a report shows."""
    runs = {name: parse_run(values, name) for name, values in records.items()}
    summary = None if bench is None else parse_bench(bench)
    lines = [] if summary is None else [_bench_line(row, summary, runs) for row in summary.rows]
    used = {run.file for line in lines for run in line.runs}
    lines += _run_lines([run for run in runs.values() if run.file not in used])
    if summary is None and not runs:
        raise StoreError("a report needs a record")
    return Comparison(lines, list(runs.values()), summary)


def stage_order(name: str) -> int:
    """Where a stage stands among the others; those that are not known come last."""
    return STAGES.index(name) if name in STAGES else len(STAGES)


def main_epochs(run: Run) -> list[Epoch]:
    train = [epoch for epoch in run.epochs if epoch.stream == "train"]
    return train or [epoch for epoch in run.epochs if epoch.stream == run.epochs[0].stream]


def wanted_read(epoch: Epoch) -> tuple[int | None, int | None]:
    """Bytes wanted and read: the engine's, or, where rows came by page faults, theirs."""
    if epoch.counts["bytes_wanted"]:
        return epoch.counts["bytes_wanted"], epoch.counts["bytes_read"]
    return epoch.counts["row_bytes"], epoch.counts["drive_bytes"]


def is_clearly_faster(line: Line, other: Line) -> bool:
    """Not where the slowest of one is as slow as the fastest of the other."""
    if line.median is None or other.median is None:
        return False
    if line.spread and other.spread and line.spread[1] >= other.spread[0]:
        return False
    return line.median < other.median


def _prepared_anew(run: Run) -> float | None:
    found = [layout.seconds for layout in run.layouts or [] if not layout.made]
    if run.prepare_seconds is None or None in found:
        return None
    return run.prepare_seconds + sum(seconds or 0.0 for seconds in found)


def disk_bytes(run: Run) -> int | None:
    """Beside the store, at most at a time; None: not known."""
    if run.layouts is None:  # an old record, whose disk_used_bytes were never counted
        return run.plan.disk_bytes
    return run.process.get("disk_used_bytes")


def ratio(value: float | None, to: float | None) -> float | None:
    return value / to if value is not None and to else None


def _mean(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known else None


def _bench_line(row: Row, bench: Bench, runs: dict[str, Run]) -> Line:
    missing = [name for name in row.records if name not in runs]
    if missing and row.status == "measured":
        raise StoreError(f"bench.json: {row.name}: its record {missing[0]} is not there")
    digest = bench.check.digests.get(row.name) if bench.check else None
    return Line(
        **vars(row),
        runs=[runs[name] for name in row.records if name in runs],
        digest=str(digest) if digest is not None else None,
        check=_verdict(bench, digest),
    )


def _verdict(bench: Bench, digest: object) -> str:
    if bench.check is None or digest is None:
        return ""
    first = next(iter(bench.check.digests.values()))
    return "same" if bench.check.equal or digest == first else "differs"


def _run_lines(runs: list[Run]) -> list[Line]:
    """Records without a benchmark: one line each, with names that tell them apart."""
    names = [run.name for run in runs]
    return [
        Line(
            name=run.name if names.count(run.name) == 1 else f"{run.name} ({run.file})",
            kind="strategy", status="measured", runs=[run],
            seconds=[epoch.seconds for epoch in main_epochs(run)], digest=run.digest,
        )
        for run in runs
    ]  # fmt: skip
