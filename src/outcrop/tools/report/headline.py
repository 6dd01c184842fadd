"""Headline: who won, by how much, under what limit; said only as strongly as the spread allows."""

from __future__ import annotations

from outcrop.tools.report import formats
from outcrop.tools.report.summary import Comparison, Line, is_clearly_faster, ratio


def headline(comparison: Comparison) -> str:
    """One sentence."""
    ranked = comparison.contest
    if not ranked:
        return "Nothing was measured."
    best = ranked[0]
    took = f"{best.name} took {formats.seconds(best.median)} {_unit(comparison)}"
    took += _after_preparation(best)
    if len(ranked) == 1:
        return took + "."
    against = ", ".join(_against(best, other) for other in ranked[1:4])
    return f"{took}: {against}{_paid(comparison, best)}."


def _after_preparation(line: Line) -> str:
    if not line.prepares:
        return ""
    disk = f" and {formats.size(line.disk_bytes)} of disk" if line.disk_bytes else ""
    return f", after {formats.seconds(line.prepare_seconds)} of preparation{disk}"


def _paid(comparison: Comparison, line: Line) -> str:
    payoff = comparison.payoff(line)
    if payoff is None:
        return ""
    if payoff.used_up is not None:
        return (
            f"; its preparation does not pay against {payoff.against} within the "
            f"{formats.number(payoff.used_up)} batches that it is for"
        )
    return f"; its preparation has paid against {payoff.against} after {payoff.text}"


def _unit(comparison: Comparison) -> str:
    batches = comparison.bench.setting("batches") if comparison.bench else None
    return f"for {batches} batches" if isinstance(batches, int) else "per epoch"


def _against(best: Line, other: Line) -> str:
    factor = ratio(other.median, best.median) or 1.0
    if factor > 1 and not is_clearly_faster(best, other):
        return f"not clearly faster than {other.name}"
    if factor < 1.005:
        return f"as fast as {other.name}"
    return f"{formats.times(factor)} as fast as {other.name}"


def tiles(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(what, number, explanation)."""
    found = [_memory_tile(comparison), _preparation_tile(comparison), _reference_tile(comparison),
             _check_tile(comparison)]  # fmt: skip
    features = comparison.origin.store.get("feature_bytes")
    if isinstance(features, int) and features:
        limit = _limit(comparison)
        times = f"{features / limit:.1f} times the memory limit" if limit else "in the store"
        found.append(("Features", formats.size(features), times))
    scores = [(score.test, line.name) for line in comparison.lines for run in line.runs
              for score in run.history if score.test is not None]  # fmt: skip
    if scores:
        value, name = max(scores)
        found.append(("Best test score", f"{value:.3f}", name))
    return [tile for tile in found if tile is not None]


def _limit(comparison: Comparison) -> int | None:
    if comparison.bench is not None:
        for name in ("cage_bytes", "memory_bytes"):
            value = comparison.bench.setting(name)
            if isinstance(value, int) and value:
                return value
    limits = {run.memory_bytes for run in comparison.runs}
    return limits.pop() if len(limits) == 1 else None


def _memory_tile(comparison: Comparison) -> tuple[str, str, str] | None:
    limit = _limit(comparison)
    if limit is None:
        return None
    if comparison.bench is None:
        return "Memory limit", formats.size(limit), "of the data path, by accounting"
    cage = str(comparison.bench.setting("cage") or "accounting")
    how = "enforced on everything" if cage == "cgroup" else "by accounting"
    data = comparison.bench.setting("memory_bytes")
    inner = f"; {formats.size(data)} for data" if isinstance(data, int) and data != limit else ""
    return "Memory limit", formats.size(limit), how + inner


def _preparation_tile(comparison: Comparison) -> tuple[str, str, str] | None:
    best = comparison.contest[0] if comparison.contest else None
    if best is None or not best.prepares:
        return None
    told = [f"of {best.name}"]
    if best.disk_bytes:
        told.append(f"{formats.size(best.disk_bytes)} of disk")
    payoff = comparison.payoff(best)
    if payoff is not None:
        told.append(f"paid {'after ' if payoff.used_up is None else ''}{payoff.text}")
    return "Preparation", formats.seconds(best.prepare_seconds), ", ".join(told)


def _reference_tile(comparison: Comparison) -> tuple[str, str, str] | None:
    contest, held = comparison.contest, [x for x in comparison.measured if "memory" in x.name]
    if not contest or not held or contest[0] in held:
        return None
    factor = ratio(contest[0].median, held[0].median)
    return "Against memory", formats.times(factor), f"the time of {held[0].name}, which holds all"


def _check_tile(comparison: Comparison) -> tuple[str, str, str] | None:
    check = comparison.bench.check if comparison.bench else None
    if check is None:
        return None
    told = f"over {check.batches} batches of {len(check.digests)} strategies"
    return "Contents", "equal" if check.equal else "DIFFERENT", told
