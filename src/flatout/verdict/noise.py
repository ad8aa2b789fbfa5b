"""Measure the noise floor from runs of the same job, and plan how long and how many trials must be to see an effect.

There are two kinds of noise: differences between steps, which longer trials average out, and differences between runs
(memory layout, placement, other tenants), which only more trials average out. A trial is long enough if the first is
small compared with the second; the plan finds the cheapest length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from flatout.errors import UsageError
from flatout.records.trial import TrialResult
from flatout.records.verdict import NoiseFloor, Objective, TrialPlan
from flatout.units import percent
from flatout.verdict.arms import MIN_EFFECT
from flatout.verdict.cost import TIMES, missing, regular_steps, spike_share, trial_costs
from flatout.verdict.prospect import WANTED_POWER, detectable_effect, trials_for

MIN_TRIALS = 3
MIN_STEPS = 20  # with fewer, a spike cannot be distinguished from a stall
MAX_STEPS = 2000
NEARLY = 1.05  # trials that detect effects at most this many times as large are as good as longer ones


def noise_floor(trials: Sequence[TrialResult], *, objective: Objective = "step_s") -> NoiseFloor:
    """Measure how much trials of one arm differ, without a steady drift over the order in which they ran.

    Trials that did not complete are excluded. Raises UsageError if fewer than 3 completed.
    """
    usable = sorted((t for t in trials if missing(t, objective) is None), key=lambda t: t.index)
    if len(usable) < MIN_TRIALS:
        raise UsageError(
            f"a noise floor needs at least {MIN_TRIALS} completed trials of the same job, but got {len(usable)}",
            hint="run more baseline trials",
        )
    cost_of = trial_costs(usable, objective)
    costs = np.array([cost_of[trial.index].log for trial in usable])
    position = np.arange(len(costs)) - (len(costs) - 1) / 2
    drift = float(position @ costs / (position @ position))
    residuals = costs - costs.mean() - drift * position
    freedom = len(costs) - 2
    steps = [_deviations(steps_s) for steps_s in regular_steps(usable).values()]
    step_sd = math.sqrt(sum(float(s @ s) for s in steps) / max(sum(len(s) - 1 for s in steps), 1))
    if objective not in TIMES:  # the trial has a single number, which more steps would not make more precise
        step_sd = 0.0
    length = _correlation_time(steps)
    num_steps = round(median(len(trial.step_s) for trial in usable))
    of_steps = step_sd**2 * length / num_steps
    starts = [trial.start_s for trial in usable if trial.start_s is not None]
    return NoiseFloor(
        objective=objective,
        num_trials=len(usable),
        num_steps=num_steps,
        between_sd=math.sqrt(max(float(residuals @ residuals) / freedom - of_steps, 0.0)),
        step_sd=step_sd,
        step_correlation_time=length,
        drift_per_trial=drift,
        spike_share=spike_share(usable),
        step_s=median(cost_of[trial.index].step_s or float(np.mean(trial.step_s)) for trial in usable),
        start_s=median(starts) if starts else None,
        degrees_of_freedom=freedom,
    )


def plan_trials(
    floor: NoiseFloor, *, effect: float, min_effect: float = MIN_EFFECT, max_steps: int = MAX_STEPS
) -> TrialPlan:
    """Return the length of trial that detects a gain of `effect` (0.03: 3 %) in the least time, and how many it takes.

    If no length detects it with 80 % power, `num_trials` is None and the reason says what can be detected.
    """
    if effect <= min_effect:
        raise UsageError(f"the effect must be above {min_effect:g}, which is called equivalent, but got {effect:g}")
    start_s = floor.start_s or 0.0
    plans = []
    for num_steps in _lengths(max_steps):
        num_trials = trials_for(effect, floor.trial_sd(num_steps), num_screened=1, min_effect=min_effect)
        if num_trials is not None:
            plans.append((num_trials * (start_s + num_steps * floor.step_s), num_steps, num_trials))
    if not plans:
        return _hopeless(floor, effect, min_effect, max_steps)
    seconds, num_steps, num_trials = min(plans)
    return TrialPlan(
        effect=effect,
        num_steps=num_steps,
        num_trials=num_trials,
        expected_s=seconds if floor.start_s is not None else None,
        reason=f"{num_steps} steps per trial detect a gain of {percent(effect)} in {num_trials} trials with at least "
        f"{percent(WANTED_POWER)} power",
    )


def _hopeless(floor: NoiseFloor, effect: float, min_effect: float, max_steps: int) -> TrialPlan:
    """Return the shortest trials that detect hardly less than the longest ones."""
    least = visible_effect(floor, max_steps, min_effect=min_effect)
    nearly = [
        num_steps
        for num_steps in _lengths(max_steps)
        if visible_effect(floor, num_steps, min_effect=min_effect) <= NEARLY * least
    ]
    detectable = percent(least) if least <= 1 else "above 100 %"
    return TrialPlan(
        effect=effect,
        num_steps=min(nearly, default=max_steps),
        num_trials=None,
        expected_s=None,
        reason=f"run-to-run standard deviation is {percent(floor.between_sd)}: a {percent(effect)} gain is"
        f" undetectable; the smallest detectable ({percent(WANTED_POWER)} power) is {detectable}",
    )


def visible_effect(floor: NoiseFloor, num_steps: int, *, min_effect: float = MIN_EFFECT) -> float:
    """Return the smallest gain that trials of this length detect with 80 % power by the last analysis."""
    effect = detectable_effect(floor.trial_sd(num_steps), math.inf, num_screened=1, min_effect=min_effect)
    assert effect is not None
    return effect


def _lengths(max_steps: int) -> list[int]:
    """Return the lengths to compare: 20 steps, then 1.5 times the previous length each time."""
    lengths = [MIN_STEPS]
    while lengths[-1] * 1.5 <= max_steps:
        lengths.append(round(lengths[-1] * 1.5))
    return lengths


def _deviations(steps_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of the step times minus their mean."""
    logs = np.log(steps_s)
    return np.asarray(logs - logs.mean())


def _correlation_time(series: Sequence[NDArray[np.float64]]) -> float:
    """Return 1 + 2 times the sum of the autocorrelations up to the first that is not positive (Geyer 1992).

    A mean over n correlated steps is as precise as a mean over n / (this value) independent steps. The value is at
    least 1.
    """
    total = 1.0
    variance = sum(float(s @ s) for s in series)
    for lag in range(1, min(len(s) for s in series) // 4):
        correlation = sum(float(s[:-lag] @ s[lag:]) for s in series) / variance if variance else 0.0
        if correlation <= 2 / math.sqrt(sum(len(s) for s in series)):  # indistinguishable from 0
            break
        total += 2 * correlation
    return total
