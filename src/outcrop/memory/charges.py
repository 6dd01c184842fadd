"""Charges: every byte that a plan keeps, by name and by the phase in which it is there.

Preparation comes before the first batch; what is made ahead *between* main loops has the memory
that they give up meanwhile. So no sum over all charges is ever in memory: the largest phase is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto


class Phase(Flag):
    """When memory is in use."""

    PREPARE = auto()
    """Before the first batch: of what stays, there is nothing yet but what every plan keeps."""
    AHEAD = auto()
    """Between main loops: the loop waits, and at most one batch is with the user."""
    LOOP = auto()
    RUN = AHEAD | LOOP
    ALWAYS = PREPARE | RUN


PREPARATION = "preparation"
"""The region of steps before the first batch, one after the other: the largest counts."""


@dataclass(frozen=True)
class Charge:
    """Bytes under one name."""

    name: str
    bytes: int
    when: Phase = Phase.RUN
    region: str | None = None
    """Charges of one region are one allocation with several tenants: the largest counts."""


def total(charges: Iterable[Charge], phase: Phase) -> int:
    """What is in memory in a phase. A region is there in all phases of its tenants."""
    own, regions, present = 0, dict[str, int](), set[str]()
    for charge in charges:
        if charge.region is None:
            own += charge.bytes if phase & charge.when else 0
            continue
        regions[charge.region] = max(regions.get(charge.region, 0), charge.bytes)
        if phase & charge.when:
            present.add(charge.region)
    return own + sum(regions[name] for name in present)


def by_name(charges: Iterable[Charge], phase: Phase) -> dict[str, int]:
    """The same, name by name; a region has the name of its tenant in this phase."""
    charges = list(charges)
    named: dict[str, int] = {}
    for charge in charges:
        if not phase & charge.when:
            continue
        size = charge.bytes
        if charge.region is not None:
            tenants = [other for other in charges if other.region == charge.region]
            here = [other for other in tenants if phase & other.when]
            # Where several are there at once, the largest stands for all.
            if charge is not max(here, key=lambda tenant: tenant.bytes):
                continue
            size = max(tenant.bytes for tenant in tenants)
        if size:
            named[charge.name] = named.get(charge.name, 0) + size
    return named
