"""Arithmetic of estimates: extremes combine as extremes, the weakest provenance wins, unknown stays unknown."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.catalog.prices import Range
from flatout.records.cost import Estimate, Provenance

_WEAKNESS: dict[Provenance, int] = {"measured": 0, "vendor": 1, "predicted": 2, "assumed": 3}


def unknown(reason: str) -> Estimate:
    return Estimate(value=None, reason=reason)


def exact(value: float, provenance: Provenance = "measured") -> Estimate:
    return Estimate(value=value, low=value, high=value, provenance=provenance)


def of_range(found: Range, scale: float = 1.0) -> Estimate:
    return Estimate(
        value=found.typical * scale, low=found.low * scale, high=found.high * scale, provenance=found.provenance
    )


def product(*factors: Estimate) -> Estimate:
    """Of numbers that are not negative."""
    value = low = high = 1.0
    for factor in factors:
        if factor.value is None or factor.low is None or factor.high is None:
            return factor
        value, low, high = value * factor.value, low * factor.low, high * factor.high
    return Estimate(value=value, low=low, high=high, provenance=_weakest(factors))


def total(parts: Sequence[Estimate]) -> Estimate:
    """0 of nothing; unknown where a part is, with that part's reason: a sum of what is known would pass for all."""
    value = low = high = 0.0
    for part in parts:
        if part.value is None or part.low is None or part.high is None:
            return part
        value, low, high = value + part.value, low + part.low, high + part.high
    return Estimate(value=value, low=low, high=high, provenance=_weakest(parts) if parts else "measured")


def between(one: Estimate, other: Estimate) -> Estimate:
    """What lies somewhere between the two: its extremes are theirs, and where it lies is assumed."""
    for each in (one, other):
        if each.value is None:
            return each
    assert one.value is not None and one.low is not None and one.high is not None
    assert other.value is not None and other.low is not None and other.high is not None
    return Estimate(
        value=(one.value + other.value) / 2,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        provenance="assumed",
    )


def _weakest(factors: Sequence[Estimate]) -> Provenance:
    known: list[Provenance] = [factor.provenance for factor in factors if factor.provenance is not None]
    return max(known, key=_WEAKNESS.__getitem__, default="measured")
