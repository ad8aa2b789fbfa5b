"""Summarise the costs of an arm's trials as one step time with its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flatout.records.step_time import StepTime, WorkTime
from flatout.records.trial import SpellKind
from flatout.verdict.cost import TrialCost, WorkCost

_Key = tuple[tuple[SpellKind, ...], float]


def arm_step(costs: Sequence[TrialCost]) -> StepTime | None:
    """Return the step time of an arm: the geometric mean of its trials, as ratios of arms are; None without any.

    `costs` are from one call of `trial_costs`, so that all have the same works.
    """
    steps = [cost for cost in costs if cost.step_s is not None and cost.regular_s is not None]
    if not steps:
        return None
    step_s = math.exp(sum(math.log(cost.step_s or 0.0) for cost in steps) / len(steps))
    shares: dict[_Key, float] = {}
    for cost in steps:
        for work in cost.work:
            share = (work.per_step_s or 0.0) / (cost.step_s or math.nan) / len(steps)
            if share > 0:
                shares[_key(work)] = shares.get(_key(work), 0.0) + share
    parts = [
        WorkTime(kinds=kinds, extra_s=share * step_s * period, period_steps=period)
        for (kinds, period), share in sorted(shares.items(), key=lambda item: -item[1])
    ]
    return StepTime(
        step_s=step_s,
        regular_s=step_s * (1 - sum(shares.values())),
        work=tuple(parts),
        unknown=tuple(dict.fromkeys(kind for cost in steps for kind in cost.unknown)),
    )


def _key(work: WorkCost) -> _Key:
    return work.kinds, work.period_steps or math.inf
