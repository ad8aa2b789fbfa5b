"""Trials and pairs made by hand or at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.records.trial import BASELINE, Pair, TrialResult


def trial(index: int, arm: str = BASELINE, step_s: Sequence[float] = (0.1,), **values: Any) -> TrialResult:
    return TrialResult(index=index, arm=arm, outcome="completed", step_s=tuple(step_s), **values)


def pairs(
    log_ratios: Sequence[float], *, orders: Sequence[str] | None = None, baseline_s: float = 0.1, **values: Any
) -> list[Pair]:
    """Pairs of one step a trial whose candidate is faster by the given log ratios, in the order AB BA AB BA ..."""
    result = []
    for position, ratio in enumerate(log_ratios):
        order = orders[position] if orders else ("AB", "BA")[position % 2]
        a, b = (1, 2) if order == "AB" else (2, 1)
        candidate_s = baseline_s * math.exp(-ratio)
        result.append(
            Pair(
                baseline=trial(2 * position + a, BASELINE, (baseline_s,), **values),
                candidate=trial(2 * position + b, "candidate", (candidate_s,), **values),
            )
        )
    return result


def swapped(of: Sequence[Pair]) -> list[Pair]:
    """The same trials with the names of the arms exchanged."""
    import msgspec

    return [
        Pair(
            baseline=msgspec.structs.replace(pair.candidate, arm=BASELINE),
            candidate=msgspec.structs.replace(pair.baseline, arm="candidate"),
            invalid_reason=pair.invalid_reason,
        )
        for pair in of
    ]


def noisy_pairs(rng: np.random.Generator, count: int, *, effect: float = 0.0, sd: float = 0.017) -> list[Pair]:
    return pairs((math.log1p(effect) + rng.normal(0, sd, count)).tolist())
