"""outcrop profile: how batches access rows, and what caches would make of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from outcrop.cli.arguments import Json, Store, neighbor_counts, optional
from outcrop.cli.output import Bars, print_facts, print_json, say, stdout
from outcrop.errors import OptionError
from outcrop.layout.trace import Trace
from outcrop.options import format_size
from outcrop.progress import Progress
from outcrop.sample.sampler import Sampling
from outcrop.store.locks import replace_synced
from outcrop.store.store import GraphStore
from outcrop.tools.profile import Profile, ProfileOptions, pictures, profile_store, profile_trace
from outcrop.tools.profile.accesses import Bin
from outcrop.tools.profile.reads import PAGE_BYTES, ReadPlan
from outcrop.tools.report import formats

_DEFAULT = ProfileOptions()
_BAR_WIDTH = 30


def _option(name: str, text: str, default: object, **more: Any) -> Any:
    """An option that was not given is None, so that --trace can refuse those that were."""
    return typer.Option(name, help=text, show_default=str(default), **more)


def profile(
    store: Store,
    num_neighbors: Annotated[
        str | None, _option("--num-neighbors", "Per hop, with commas; -1 takes all.", "10,10,10")
    ] = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", "Seeds per batch.", _DEFAULT.batch_size)
    ] = None,
    batches: Annotated[
        int | None,
        _option("--batches", "How many to sample, or to take of --trace.", "40; all", min=1),
    ] = None,
    input_nodes: Annotated[
        str | None,
        _option("--input-nodes", "train, val, test or all.", _DEFAULT.input_nodes),
    ] = None,
    seed: Annotated[int | None, _option("--seed", "Of the batches.", _DEFAULT.seed, min=0)] = None,
    sampler: Annotated[
        str | None, _option("--sampler", "neighbor or shadow.", _DEFAULT.sampling.kind)
    ] = None,
    batching: Annotated[
        str | None,
        _option("--batching", "random, or partition: seeds of neighbours.", _DEFAULT.batching),
    ] = None,
    trace: Annotated[Path | None, optional("Profile this trace instead.")] = None,
    as_json: Json = False,
    out: Annotated[Path | None, optional("A folder for profile.json and pictures.")] = None,
) -> None:
    """Show how batches access feature rows: skew, reuse, reads, and misses by cache and size.

    Nothing is trained and no row is read: batches are sampled into a temporary trace, or read from
    one.

    Example: outcrop profile papers.outcrop --num-neighbors 10,10,10 --batches 40 --out profile

    Example: outcrop profile papers.outcrop --batching partition
    """
    given = {
        "num_neighbors": None if num_neighbors is None else neighbor_counts(num_neighbors),
        "batch_size": batch_size,
        "input_nodes": input_nodes,
        "seed": seed,
        "sampler": sampler,
        "batching": batching,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # now, since it may fail
    with GraphStore(store) as opened, Bars() as progress:
        found = _profile(opened, trace, batches, given, progress)
    if out is not None:
        _write(found, out)
    if as_json:
        print_json(found.as_dict())
    else:
        _show(found)


def _profile(
    store: GraphStore,
    trace: Path | None,
    batches: int | None,
    given: dict[str, Any],
    progress: Progress,
) -> Profile:
    if trace is None:
        return profile_store(store, _options(given, batches), progress)
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise OptionError(f"a trace is sampled already: leave out {names}, or --trace")
    with Trace(store.disk, trace) as opened:
        return profile_trace(store, opened, batches=batches, progress=progress)


def _options(given: dict[str, Any], batches: int | None) -> ProfileOptions:
    names = ("batch_size", "input_nodes", "seed", "batching")
    rest = {name: given[name] for name in names if name in given}
    default = _DEFAULT.sampling
    sampling = Sampling.of(
        given.get("num_neighbors", default.num_neighbors), kind=given.get("sampler", default.kind)
    )
    return ProfileOptions(sampling, batches=batches or _DEFAULT.batches, **rest)


def _write(found: Profile, out: Path) -> None:
    replace_synced(out / "profile.json", json.dumps(found.as_dict(), indent=1).encode())
    for name, picture in pictures(found).items():
        replace_synced(out / name, picture.encode())


# The terminal


def _show(found: Profile) -> None:
    print_facts(_facts(found))
    _print("Accesses to the rows with the most of them",
           ["rows", *(f"top {share.percent} %" for share in found.top)],
           [["accesses", *(formats.share(share.share) for share in found.top)]])  # fmt: skip
    _print("Misses by cache size, as a share of accesses",
           ["of all rows", *(f"{size.percent} %" for size in found.cache_sizes)],
           [[_words(policy.name), *map(formats.share, policy.miss_ratio)]
            for policy in found.policies])  # fmt: skip
    say("static caches and belady filled are filled before the first batch, the others empty",
        style="dim")  # fmt: skip
    _print("Batches since a row's last use", ["batches", "accesses", "", ""],
           _bars(found.reuse_batches, found.accesses))  # fmt: skip
    _print("Other rows used since a row's last use", ["rows", "accesses", "", ""],
           _bars(found.reuse_rows, found.accesses))  # fmt: skip
    if found.reads:
        _show_reads(found)


def _facts(found: Profile) -> dict[str, str]:
    ratio, row_bytes = found.redundancy_ratio, found.store["row_bytes"]
    sampled = {name: value for name, value in found.trace.items() if name != "store"}
    first = formats.share(found.distinct_rows / found.accesses)
    return {
        "rows": f"{found.store['nodes']:,}" + (f" of {row_bytes:,} B" if row_bytes else ""),
        "sampled": ", ".join(f"{_words(name)} {_value(v)}" for name, v in sampled.items()),
        "batches": f"{found.batches:,} with {found.seeds:,} seeds",
        "accesses": f"{found.accesses:,}, {found.accesses / found.batches:,.0f} per batch",
        "distinct rows": f"{found.distinct_rows:,}; first uses are {first} of accesses",
        "redundancy": _redundancy(ratio, found.random_redundancy_ratio),
    }


def _redundancy(ratio: float | None, random: float | None) -> str:
    if ratio is None:
        return "none: no seeds"
    told = f"{ratio:,.2f} rows per seed"
    if random is None:
        return told
    return f"{told}; by chance {random:,.2f} ({ratio / random - 1:+.1%} by partitions)"


def _show_reads(found: Profile) -> None:
    plans = found.reads
    header = ["merged over gaps of", *(f"{plan.gap_bytes // 1024} KiB" for plan in plans)]
    _print(
        "Reads without a cache, per batch",
        header,
        [
            ["requests", *(f"{plan.requests_per_batch:,.0f}" for plan in plans)],
            ["pages", *(f"{plan.pages_per_batch:,.0f}" for plan in plans)],
            ["bytes read", *(format_size(int(p.pages_per_batch * PAGE_BYTES)) for p in plans)],
            ["per byte wanted", *(f"{plan.amplification:.2f}" for plan in plans)],
        ],
    )
    _print("Requests by their pages", header, _requests_by_pages(plans))


def _requests_by_pages(plans: list[ReadPlan]) -> Iterable[list[str]]:
    """A row per range of pages that any plan has."""
    by_range = [{_range(b): b.count for b in plan.pages_per_request} for plan in plans]
    for shown in max(by_range, key=len):
        counts = [counted.get(shown, 0) for counted in by_range]
        if any(counts):
            shares = (n / plan.requests for n, plan in zip(counts, plans, strict=True))
            yield [shown, *map(formats.share, shares)]


def _bars(bins: list[Bin], total: int) -> Iterable[list[str]]:
    most = max((b.count for b in bins), default=1)
    for b in bins:
        bar = "█" * round(_BAR_WIDTH * b.count / max(most, 1))
        yield [_range(b), f"{b.count:,}", formats.share(b.count / max(total, 1)), bar]


def _range(b: Bin) -> str:
    return f"{b.first:,}" if b.first == b.last else f"{b.first:,} to {b.last:,}"


def _print(title: str, header: list[str], rows: Iterable[list[str]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(header):
        bars = number == 3 and not name
        table.add_column(name, justify="left" if number == 0 or bars else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    stdout.print()
    stdout.print(table)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
