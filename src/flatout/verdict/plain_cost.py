"""Reduce a trial alone to the logarithm of its cost: its mean step, with or without rare long steps.

It knows nothing of the work that returns every N steps, which `cost.trial_costs` tells apart. The verdict on pairs and
the screening by single trials use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.trial import TrialResult
from flatout.records.verdict import Objective
from flatout.verdict.cost import TIMES, missing

SPIKE_FACTOR = 1.5  # a step longer than this many medians of its trial is a spike
MAX_SPIKE_SHARE = 0.05  # if more steps are that long, in either arm, they are stalls of the job itself


class PlainCost(msgspec.Struct, frozen=True, kw_only=True):
    """Natural logarithms of a trial's cost over all steps and without spikes; lower is better."""

    of_all_steps: float
    without_spikes: float
    num_steps: int
    num_spikes: int

    def log(self, *, drop_spikes: bool) -> float:
        return self.without_spikes if drop_spikes else self.of_all_steps


def trial_cost(trial: TrialResult, objective: Objective) -> PlainCost:
    """Return the cost of a trial that has what the objective needs (see `missing`)."""
    assert missing(trial, objective) is None, (trial.arm, objective)
    steps = np.asarray(trial.step_s, dtype=np.float64)
    if objective in TIMES:
        ordinary = without_spikes(steps)
        num_spikes = len(steps) - len(ordinary)
        mean_of_all = float(steps.mean())
        amounts = mean_of_all, float(ordinary.mean()) if num_spikes else mean_of_all
    else:
        amount = trial.peak_memory_bytes if objective == "peak_memory_bytes" else trial.energy_j_per_step
        amounts, num_spikes = (float(amount or math.nan),) * 2, 0
    per = 1.0
    if objective in ("s_per_sample", "j_per_sample"):
        per = trial.samples_per_step or math.nan
    elif objective == "s_per_token":
        per = trial.tokens_per_step or math.nan
    return PlainCost(
        of_all_steps=math.log(amounts[0] / per),
        without_spikes=math.log(amounts[1] / per),
        num_steps=len(steps),
        num_spikes=num_spikes,
    )


def without_spikes(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the steps that take at most 1.5 times the median."""
    return steps[steps <= SPIKE_FACTOR * _median(steps)]


def _median(steps: NDArray[np.float64]) -> float:
    """Return what `np.median` returns for at least one number, in a tenth of its time for the few steps of a trial."""
    ordered = np.sort(steps)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)


def spike_share(costs: Iterable[PlainCost]) -> float:
    """Return the share of spikes among all steps of the trials of one arm."""
    counts = [(cost.num_spikes, cost.num_steps) for cost in costs]
    return sum(spikes for spikes, _ in counts) / max(sum(steps for _, steps in counts), 1)


def are_spikes_rare(*arms: Iterable[PlainCost]) -> bool:
    """Whether spikes may be dropped: they are few in each arm."""
    return all(spike_share(arm) <= MAX_SPIKE_SHARE for arm in arms)
