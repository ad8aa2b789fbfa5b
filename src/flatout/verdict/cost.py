"""Reduce a trial to the logarithm of its cost: one number that is robust to rare spikes, and includes stalls.

The obvious robust choice, the median step, is wrong here: a loader with four workers too few makes every fourth step
long, and the median hides both this and the gain of a fix. So the cost is the mean. Long steps are excluded only if
they are rare in both arms; otherwise they are part of the job and are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.trial import TrialResult
from flatout.records.verdict import Objective

SPIKE_FACTOR = 1.5  # a step longer than this many medians of its trial is a spike
MAX_SPIKE_SHARE = 0.05  # if more steps are that long, in either arm, they are stalls of the job itself
TIMES: tuple[Objective, ...] = ("step_s", "s_per_sample", "s_per_token")


class TrialCost(msgspec.Struct, frozen=True, kw_only=True):
    """Natural logarithms of a trial's cost over all steps and without spikes; lower is better."""

    of_all_steps: float
    without_spikes: float
    num_steps: int
    num_spikes: int

    def log(self, *, drop_spikes: bool) -> float:
        return self.without_spikes if drop_spikes else self.of_all_steps


def trial_cost(trial: TrialResult, objective: Objective) -> TrialCost:
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
    return TrialCost(
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


def spike_share(costs: Iterable[TrialCost]) -> float:
    """Return the share of spikes among all steps of the trials of one arm."""
    counts = [(cost.num_spikes, cost.num_steps) for cost in costs]
    return sum(spikes for spikes, _ in counts) / max(sum(steps for _, steps in counts), 1)


def are_spikes_rare(*arms: Iterable[TrialCost]) -> bool:
    """Whether spikes may be dropped: they are few in each arm."""
    return all(spike_share(arm) <= MAX_SPIKE_SHARE for arm in arms)


def missing(trial: TrialResult, objective: Objective) -> str | None:
    """Say why the trial has no cost for this objective; None if it has one."""
    if not trial.is_complete:
        return f"a trial of {trial.arm}: {trial.outcome.replace('_', ' ')}"
    needs: dict[str, float | None] = {}
    if objective == "peak_memory_bytes":
        needs["peak memory"] = trial.peak_memory_bytes
    if objective in ("j_per_step", "j_per_sample"):
        needs["energy"] = trial.energy_j_per_step
    if objective in ("s_per_sample", "j_per_sample"):
        needs["number of samples"] = trial.samples_per_step
    if objective == "s_per_token":
        needs["number of tokens"] = trial.tokens_per_step
    absent = [name for name, value in needs.items() if not value]
    if absent:
        return f"a trial of {trial.arm} has no {absent[0]}"
    return None
