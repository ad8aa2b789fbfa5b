"""Runs of the same job -> the noise floor; noise floor and effect -> how long and how many trials must be.

Two kinds of noise: what differs between steps, which longer trials average out, and what differs between runs (memory
layout, placement, other tenants), which only more trials do. A trial is long enough when the first is small beside the
second; the plan finds the cheapest of all lengths.
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
from flatout.verdict.cost import TIMES, are_spikes_rare, missing, spike_share, trial_cost, without_spikes
from flatout.verdict.judge import MIN_EFFECT, TRUSTED_PAIRS
from flatout.verdict.looks import DEFAULT_LOOKS, Look, Looks
from flatout.verdict.paired import FEWEST_FOR_DRIFT
from flatout.verdict.student import noncentral_t_tail, normal_tail, t_quantile

MIN_TRIALS = 3
MIN_STEPS = 20  # fewer do not tell a spike from a stall
MAX_STEPS = 2000
WANTED_POWER = 0.8


def noise_floor(trials: Sequence[TrialResult], *, objective: Objective = "step_s") -> NoiseFloor:
    """How much trials of one arm differ, in the order in which they ran, a steady drift apart.

    Trials that did not complete are left out. UsageError for fewer than 3 that did.
    """
    usable = sorted((t for t in trials if missing(t, objective) is None), key=lambda t: t.index)
    if len(usable) < MIN_TRIALS:
        raise UsageError(
            f"a noise floor needs at least {MIN_TRIALS} trials of the same job that complete, but got {len(usable)}",
            hint="run the baseline more often",
        )
    found = [trial_cost(trial, objective) for trial in usable]
    drop_spikes = are_spikes_rare(found)
    costs = np.array([cost.log(drop_spikes=drop_spikes) for cost in found])
    place = np.arange(len(costs)) - (len(costs) - 1) / 2
    drift = float(place @ costs / (place @ place))
    residuals = costs - costs.mean() - drift * place
    freedom = len(costs) - 2
    steps = [_log_steps(trial, drop_spikes) for trial in usable]
    step_sd = math.sqrt(sum(float(s @ s) for s in steps) / max(sum(len(s) - 1 for s in steps), 1))
    if objective not in TIMES:  # one number a trial: more steps would not make it surer
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
        spike_share=spike_share(found),
        step_s=median(float(np.mean(trial.step_s)) for trial in usable),
        start_s=median(starts) if starts else None,
        degrees_of_freedom=freedom,
    )


def plan_trials(
    floor: NoiseFloor,
    *,
    effect: float,
    looks: Looks = DEFAULT_LOOKS,
    min_effect: float = MIN_EFFECT,
    max_steps: int = MAX_STEPS,
) -> TrialPlan:
    """The length of trial that finds a gain of `effect` (0.03: 3 %) in the least time, and the pairs that takes.

    Where no length finds it with a power of 80 %, `num_pairs` is None and the reason says what can be seen.
    """
    if effect <= min_effect:
        raise UsageError(f"the effect must be above {min_effect:g}, which is called equivalent, but got {effect:g}")
    start_s = floor.start_s or 0.0
    plans = []
    for num_steps in _lengths(max_steps):
        pair_sd = floor.pair_sd(num_steps)
        powers = [_power(look, pair_sd, effect, min_effect, floor) for look in looks.looks]
        expected = _expected_pairs(looks, powers)
        seconds = 2 * expected * (start_s + num_steps * floor.step_s)
        found = next((k.num_pairs for k, p in zip(looks.looks, powers, strict=True) if p >= WANTED_POWER), None)
        plans.append((found is None, seconds, num_steps, found, expected, max(powers)))
    is_hopeless, seconds, num_steps, found, expected, power = min(plans)
    if is_hopeless:
        _, _, num_steps, _, _, power = max(plans, key=lambda plan: (plan[-1], -plan[2]))
        least = visible_effect(floor, num_steps, looks=looks, min_effect=min_effect)
        seen = f"gains from {percent(least)} on" if least is not None else "none below 100 %"
        reason = (
            f"{percent(effect)} is lost in the noise between runs ({percent(floor.between_sd)}): {seen} can be seen"
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
        reason=f"{num_steps} steps a trial find {percent(effect)} in {found} pairs with a chance of at least "
        f"{percent(WANTED_POWER)}",
    )


def visible_effect(
    floor: NoiseFloor, num_steps: int, *, looks: Looks = DEFAULT_LOOKS, min_effect: float = MIN_EFFECT
) -> float | None:
    """The least gain that trials of so many steps find with a power of 80 % at the last look; None: not even 100 %."""
    low, high = min_effect, 1.0
    pair_sd = floor.pair_sd(num_steps)
    if _power(looks.looks[-1], pair_sd, high, min_effect, floor) < WANTED_POWER:
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2
        if _power(looks.looks[-1], pair_sd, middle, min_effect, floor) >= WANTED_POWER:
            high = middle
        else:
            low = middle
    return high


def _power(look: Look, pair_sd: float, effect: float, min_effect: float, floor: NoiseFloor) -> float:
    """The chance of `better` at this look alone, at least: noncentral t, less the chance of an estimate too small."""
    true, margin = math.log1p(effect), math.log1p(min_effect)
    if pair_sd <= 0:
        return 1.0
    error = pair_sd / math.sqrt(look.num_pairs)
    freedom = look.num_pairs - (1 if look.num_pairs < FEWEST_FOR_DRIFT else 2)
    if look.num_pairs < TRUSTED_PAIRS:
        freedom += floor.degrees_of_freedom
    excludes = noncentral_t_tail(t_quantile(look.level / 2, freedom), freedom, true / error)
    return max(excludes - normal_tail((true - margin) / error), 0.0)


def _expected_pairs(looks: Looks, powers: Sequence[float]) -> float:
    """Pairs on average: each stretch between looks is run if no look before it decided."""
    expected, before, undecided = 0.0, 0, 1.0
    for look, power in zip(looks.looks, powers, strict=True):
        expected += (look.num_pairs - before) * undecided
        before, undecided = look.num_pairs, min(undecided, 1 - power)
    return expected


def _lengths(max_steps: int) -> list[int]:
    """Lengths to weigh: from 20 on, each half as long again as the last."""
    lengths = [MIN_STEPS]
    while lengths[-1] * 1.5 <= max_steps:
        lengths.append(round(lengths[-1] * 1.5))
    return lengths


def _log_steps(trial: TrialResult, drop_spikes: bool) -> NDArray[np.float64]:
    """Logarithms of the steps less their mean."""
    steps = np.asarray(trial.step_s, dtype=np.float64)
    logs = np.log(without_spikes(steps) if drop_spikes else steps)
    return np.asarray(logs - logs.mean())


def _correlation_time(series: Sequence[NDArray[np.float64]]) -> float:
    """1 + 2 times the sum of the autocorrelations, up to the first that is not positive (Geyer 1992); at least 1.

    A mean over n correlated steps is as sure as one over n / this independent ones.
    """
    total = 1.0
    variance = sum(float(s @ s) for s in series)
    for lag in range(1, min(len(s) for s in series) // 4):
        correlation = sum(float(s[:-lag] @ s[lag:]) for s in series) / variance if variance else 0.0
        if correlation <= 2 / math.sqrt(sum(len(s) for s in series)):  # not to be told from 0
            break
        total += 2 * correlation
    return total
