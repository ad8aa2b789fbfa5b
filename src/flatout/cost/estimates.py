"""Arithmetic of estimates: extremes combine as extremes, the weakest provenance wins, unknown stays unknown."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.catalog.prices import Range
from flatout.records.cost import Estimate, Provenance

_WEAKNESS: dict[Provenance, int] = {"measured": 0, "vendor": 1, "predicted": 2, "assumed": 3}


def unknown(reason: str) -> Estimate:
    """Return an estimate without a value."""
    return Estimate(value=None, reason=reason)


def exact(value: float, provenance: Provenance = "measured") -> Estimate:
    """Return an estimate whose extremes are its value."""
    return Estimate(value=value, low=value, high=value, provenance=provenance)


def of_range(bounds: Range, scale: float = 1.0) -> Estimate:
    """Return the range, times `scale`, as an estimate."""
    return Estimate(
        value=bounds.typical * scale, low=bounds.low * scale, high=bounds.high * scale, provenance=bounds.provenance
    )


def product(*factors: Estimate) -> Estimate:
    """Multiply estimates that are not negative; the product is unknown if a factor is."""
    value = low = high = 1.0
    for factor in factors:
        if factor.value is None or factor.low is None or factor.high is None:
            return factor
        value, low, high = value * factor.value, low * factor.low, high * factor.high
    return Estimate(value=value, low=low, high=high, provenance=_weakest(factors))


def total(parts: Sequence[Estimate]) -> Estimate:
    """Add estimates. The total is unknown if a part is: a sum of the other parts would be mistaken for the total."""
    value = low = high = 0.0
    for part in parts:
        if part.value is None or part.low is None or part.high is None:
            return part
        value, low, high = value + part.value, low + part.low, high + part.high
    return Estimate(value=value, low=low, high=high, provenance=_weakest(parts) if parts else "measured")


def between(low: Estimate, high: Estimate) -> Estimate:
    """Return an estimate with the extremes of both and an assumed value in the middle."""
    for estimate in (low, high):
        if estimate.value is None:
            return estimate
    assert low.value is not None and low.low is not None and low.high is not None
    assert high.value is not None and high.low is not None and high.high is not None
    return Estimate(
        value=(low.value + high.value) / 2,
        low=min(low.low, high.low),
        high=max(low.high, high.high),
        provenance="assumed",
    )


def _weakest(factors: Sequence[Estimate]) -> Provenance:
    provenances: list[Provenance] = [factor.provenance for factor in factors if factor.provenance is not None]
    return max(provenances, key=_WEAKNESS.__getitem__, default="measured")
