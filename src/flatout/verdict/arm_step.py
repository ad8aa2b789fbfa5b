"""Summarise the costs of an arm's trials as one step time with its parts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from flatout.records.step_time import StepTime, WorkTime
from flatout.records.trial import SpellKind
from flatout.verdict.cost import TrialCost

_Key = tuple[tuple[SpellKind, ...], float]


def arm_step(costs: Sequence[TrialCost]) -> StepTime | None:
    """Return the step time of an arm: the geometric mean of its trials, as ratios of arms are; None without any.

    `costs` are from one call of `trial_costs`, so that all have the same works.
    """
    steps_s = [cost.step_s for cost in costs if cost.step_s is not None]
    if not steps_s:
        return None
    step_s = math.exp(sum(map(math.log, steps_s)) / len(steps_s))
    share: dict[_Key, float] = defaultdict(float)
    for cost in costs:
        for work, share_of_trial in _shares(cost).items():
            share[work] += share_of_trial / len(steps_s)
    parts = [
        WorkTime(kinds=kinds, extra_s=share[kinds, period] * period * step_s, period_steps=period)
        for kinds, period in sorted(share, key=lambda work: -share[work])
    ]
    return StepTime(
        step_s=step_s,
        regular_s=step_s * (1 - sum(share.values())),
        work=tuple(parts),
        unknown=tuple(dict.fromkeys(kind for cost in costs for kind in cost.unknown)),
    )


def _shares(cost: TrialCost) -> dict[_Key, float]:
    """Return the share of the trial's step that each work has, by its kinds and its period."""
    if cost.step_s is None:
        return {}
    shares: dict[_Key, float] = defaultdict(float)
    for work in cost.work:
        if work.period_steps is not None and work.per_step_s:
            shares[work.kinds, work.period_steps] += work.per_step_s / cost.step_s
    return shares
