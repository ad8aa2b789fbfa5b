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
from flatout.verdict.cost import TIMES, missing, regular_steps, spike_share, trial_costs
from flatout.verdict.interim import DEFAULT_INTERIM, InterimAnalysis, InterimPlan
from flatout.verdict.judge import MIN_EFFECT, TRUSTED_PAIRS
from flatout.verdict.paired import FEWEST_FOR_DRIFT
from flatout.verdict.student import noncentral_t_tail, normal_tail, t_quantile

MIN_TRIALS = 3
MIN_STEPS = 20  # with fewer, a spike cannot be distinguished from a stall
MAX_STEPS = 2000
WANTED_POWER = 0.8


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
    floor: NoiseFloor,
    *,
    effect: float,
    interim: InterimPlan = DEFAULT_INTERIM,
    min_effect: float = MIN_EFFECT,
    max_steps: int = MAX_STEPS,
) -> TrialPlan:
    """Return the length of trial that detects a gain of `effect` (0.03: 3 %) in the least time, and the pairs needed.

    If no length detects it with 80 % power, `num_pairs` is None and the reason says what can be detected.
    """
    if effect <= min_effect:
        raise UsageError(f"the effect must be above {min_effect:g}, which is called equivalent, but got {effect:g}")
    start_s = floor.start_s or 0.0
    plans = []
    for num_steps in _lengths(max_steps):
        pair_sd = floor.pair_sd(num_steps)
        powers = [_power(analysis, pair_sd, effect, min_effect, floor) for analysis in interim.analyses]
        expected = _expected_pairs(interim, powers)
        seconds = 2 * expected * (start_s + num_steps * floor.step_s)
        found = next((k.num_pairs for k, p in zip(interim.analyses, powers, strict=True) if p >= WANTED_POWER), None)
        plans.append((found is None, seconds, num_steps, found, expected, max(powers)))
    is_hopeless, seconds, num_steps, found, expected, power = min(plans)
    if is_hopeless:
        _, _, num_steps, _, _, power = max(plans, key=lambda plan: (plan[-1], -plan[2]))
        least = visible_effect(floor, num_steps, interim=interim, min_effect=min_effect)
        detectable = percent(least) if least is not None else "above 100 %"
        reason = (
            f"run-to-run standard deviation is {percent(floor.between_sd)}: a {percent(effect)} gain is undetectable;"
            f" the smallest detectable ({percent(WANTED_POWER)} power) is {detectable}"
        )
        return TrialPlan(
            effect=effect,
            num_steps=num_steps,
            num_pairs=None,
            expected_pairs=None,
            power=power,
            expected_s=None,
            reason=reason,
        )
    return TrialPlan(
        effect=effect,
        num_steps=num_steps,
        num_pairs=found,
        expected_pairs=expected,
        power=power,
        expected_s=seconds if floor.start_s is not None else None,
        reason=f"{num_steps} steps per trial detect a gain of {percent(effect)} in {found} pairs with at least "
        f"{percent(WANTED_POWER)} power",
    )


def visible_effect(
    floor: NoiseFloor, num_steps: int, *, interim: InterimPlan = DEFAULT_INTERIM, min_effect: float = MIN_EFFECT
) -> float | None:
    """Return the smallest gain that such trials detect with 80 % power at the last analysis; None if above 100 %."""
    low, high = min_effect, 1.0
    pair_sd = floor.pair_sd(num_steps)
    if _power(interim.analyses[-1], pair_sd, high, min_effect, floor) < WANTED_POWER:
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2
        if _power(interim.analyses[-1], pair_sd, middle, min_effect, floor) >= WANTED_POWER:
            high = middle
        else:
            low = middle
    return high


def _power(analysis: InterimAnalysis, pair_sd: float, effect: float, min_effect: float, floor: NoiseFloor) -> float:
    """Return a lower bound on the chance of `better` here: noncentral t, minus that of too small an estimate."""
    true, margin = math.log1p(effect), math.log1p(min_effect)
    if pair_sd <= 0:
        return 1.0
    error = pair_sd / math.sqrt(analysis.num_pairs)
    freedom = analysis.num_pairs - (1 if analysis.num_pairs < FEWEST_FOR_DRIFT else 2)
    if analysis.num_pairs < TRUSTED_PAIRS:
        freedom += floor.degrees_of_freedom
    excludes = noncentral_t_tail(t_quantile(analysis.level / 2, freedom), freedom, true / error)
    return max(excludes - normal_tail((true - margin) / error), 0.0)


def _expected_pairs(interim: InterimPlan, powers: Sequence[float]) -> float:
    """Return the mean number of pairs: those before an analysis are run if no earlier analysis decided."""
    expected, before, undecided = 0.0, 0, 1.0
    for analysis, power in zip(interim.analyses, powers, strict=True):
        expected += (analysis.num_pairs - before) * undecided
        before, undecided = analysis.num_pairs, min(undecided, 1 - power)
    return expected


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
