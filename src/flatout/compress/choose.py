"""Choose among the variants: which may go to the final evaluation, which are dominated, and why others are refused.

In: `VariantResult`s. Out: names and reasons. Nothing is eligible that was not applied, that is not shown to be as fast
as the untouched model at each batch size, or whose loss on the search data is above the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flatout.records.compression import MaxLoss, Refusal, VariantResult

LEAST_SAVING = 0.1  # of the disk space: a variant that is not faster must save at least as much
_TOLERANCES = {"speed": 0.01, "disk": 0.001, "memory": 0.03, "load": 0.1, "metric": 0.0}


def refusal(
    variant: VariantResult, untouched: VariantResult, max_loss: MaxLoss, num_batches: int = 1
) -> Refusal | None:
    """Return why a variant is not eligible for the final evaluation; None if it is."""
    if variant.outcome != "measured":
        return variant.outcome
    search = variant.search
    if search is None or search.outcome == "unknown":
        return "loss_not_shown"
    if search.outcome == "inferior" or not search.loss <= max_loss.value:
        return "inferior"
    if is_slower(variant):
        return "slower"
    if looks_slower(variant):
        return "looks_slower"
    verdicts = {speed.verdict.verdict for speed in variant.speeds}
    if len(variant.speeds) < num_batches or "undecided" in verdicts:
        return "speed_not_shown"
    if "better" not in verdicts and not _is_smaller(variant, untouched):
        return "no_gain"
    return None


def is_slower(variant: VariantResult) -> bool:
    """Return whether a variant is shown to be slower than the untouched model at a batch size."""
    return any(speed.verdict.verdict == "worse" for speed in variant.speeds)


def looks_slower(variant: VariantResult) -> bool:
    """Return whether a variant was left without a comparison, because its start in the screening looked slower."""
    return variant.screened is not None and variant.screened.looks_slower


def _is_smaller(variant: VariantResult, untouched: VariantResult) -> bool:
    if variant.disk_bytes is None or not untouched.disk_bytes:
        return False
    return variant.disk_bytes <= (1 - LEAST_SAVING) * untouched.disk_bytes


def finalists(eligible: Sequence[VariantResult]) -> list[str]:
    """Return the fastest and the smallest of the eligible variants."""
    if not eligible:
        return []
    fastest = max(eligible, key=mean_speedup)
    sized = [variant for variant in eligible if variant.disk_bytes is not None]
    smallest = min(sized, key=lambda variant: (variant.disk_bytes or 0, -mean_speedup(variant)), default=fastest)
    return list(dict.fromkeys([fastest.name, smallest.name]))


def mean_speedup(variant: VariantResult) -> float:
    """Return the geometric mean over the batch sizes; 0 if it is unknown."""
    speedups = [speed.verdict.speedup for speed in variant.speeds]
    known = [speedup for speedup in speedups if speedup is not None]
    if not known:
        return 0.0
    return math.exp(math.fsum(map(math.log, known)) / len(known))


def dominated_by(variant: VariantResult, others: Sequence[VariantResult]) -> str | None:
    """Return another variant that is as good in all that is known of both, and better in something; None if none is."""
    if variant.outcome != "measured":
        return None
    return next((other.name for other in others if other.name != variant.name and _dominates(other, variant)), None)


def _dominates(other: VariantResult, variant: VariantResult) -> bool:
    if other.outcome != "measured":
        return False
    mine, its = _costs(variant), _costs(other)
    shared = [name for name in mine if name in its]
    if "metric" not in shared or not any(name.startswith("speed") for name in shared):
        return False
    is_as_good = all(its[name] <= mine[name] + _tolerance(name) for name in shared)
    return is_as_good and any(its[name] < mine[name] - _tolerance(name) for name in shared)


def _tolerance(name: str) -> float:
    return _TOLERANCES[name.partition(" ")[0]]


def _costs(variant: VariantResult) -> dict[str, float]:
    """Return what is known of a variant, as logarithms of costs; the metric is the loss itself."""
    costs = {}
    for name, value in (("disk", variant.disk_bytes), ("memory", variant.memory_bytes), ("load", variant.load_s)):
        if value:
            costs[name] = math.log(value)
    for speed in variant.speeds:
        if speed.verdict.speedup is not None:
            costs[f"speed {speed.batch}"] = -math.log(speed.verdict.speedup)
    if variant.search is not None:
        costs["metric"] = variant.search.loss
    return costs
