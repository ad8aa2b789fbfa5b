"""State what a comparison can show: the trials that a slowdown takes, and the slowdown that the budget's trials find.

In: the run-to-run noise of the first trials. Out: a `Power`. The analyses and the order of trials that decide the
comparison are applied to simulated trials without drift, whose noise is drawn from what is plausible after these few: a
standard deviation of four trials is often half of the true one. It runs nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from flatout.compare.runner import arm_of
from flatout.records.comparison import Power
from flatout.verdict.analyses import ANALYSES, analyse
from flatout.verdict.arms import MIN_EFFECT
from flatout.verdict.arrangement import planned
from flatout.verdict.effect import LEAST_SD, MOST_SD, Floats

WANTED_POWER = 0.8
USUAL_NOISES = (0.003, 0.01, 0.03)
_NUM_SIMULATED = 1000
_SEED = 20
_LEAST_NOISE = 1e-4
_MOST_LOG = math.log(100.0)  # larger slowdowns are not stated


def power(
    run_sd: float, freedom: int | None, *, effect: float, gate: float | None, trial_s: float, num_affordable: int
) -> Power:
    """Return the power to find a slowdown of `effect`: one that is above the gate, if there is a gate.

    `freedom` are the degrees of freedom of `run_sd`; None: it is known. `num_affordable` counts the trials of both arms
    together.
    """
    detectable = [(num_trials, _detectable(log, gate)) for num_trials, log in thresholds(_rounded(run_sd), freedom)]
    affordable = [smallest for num_trials, smallest in detectable if num_trials <= num_affordable]
    smallest = min(affordable, default=math.inf)
    return Power(
        run_sd=run_sd,
        trial_s=trial_s,
        effect=effect,
        num_trials=_trials_for(run_sd, freedom, effect, gate),
        num_affordable=num_affordable,
        detectable=smallest if smallest < math.expm1(_MOST_LOG) else None,
    )


def trials_by_noise(effect: float, gate: float | None) -> dict[float, int | None]:
    """Return the trials that find a slowdown at each of some usual noises, before that of the job is known."""
    return {noise: _trials_for(noise, None, effect, gate) for noise in USUAL_NOISES}


def _trials_for(run_sd: float, freedom: int | None, effect: float, gate: float | None) -> int | None:
    for num_trials, log in thresholds(_rounded(run_sd), freedom):
        if _detectable(log, gate) <= effect:
            return num_trials
    return None


def _detectable(log: Floats, gate: float | None) -> float:
    """Return the smallest slowdown that is found with the wanted power, from the log effects that each trial needs."""
    beyond_gate = math.log1p(gate) if gate is not None else 0.0
    smallest = float(np.quantile(log, WANTED_POWER)) + beyond_gate
    if gate is None:
        smallest = max(smallest, math.log1p(MIN_EFFECT))
    return math.expm1(smallest) if smallest < _MOST_LOG else math.inf


def _rounded(run_sd: float) -> float:
    """Return the noise to 5 %: it comes from a few trials, and rounded noise is simulated once."""
    return math.exp(round(math.log(max(run_sd, _LEAST_NOISE)) / 0.05) * 0.05)


@lru_cache(maxsize=64)
def thresholds(run_sd: float, freedom: int | None) -> tuple[tuple[int, Floats], ...]:
    """Return, for each analysis, the trials of both arms and the log slowdown from which each simulation finds it.

    A slowdown shifts the estimate and its interval, and changes nothing else: so one simulation without any serves for
    all slowdowns.
    """
    most = num_trials_with(ANALYSES[-1].num_fresh)
    order = "".join(arm_of(position) for position in range(most))
    rng = np.random.default_rng(_SEED)
    logs = rng.normal(0.0, 1.0, (_NUM_SIMULATED, most)) * _plausible_sds(rng, run_sd, freedom)[:, None]
    found_from = np.full(_NUM_SIMULATED, np.inf)
    result = []
    for analysis in ANALYSES:
        num_trials = num_trials_with(analysis.num_fresh)
        arrangement = planned(order[:num_trials])
        fitted = analyse(logs[:, :num_trials], arrangement, analysis, num_screened=1, min_effect=MIN_EFFECT)
        if fitted is not None:
            found_from = np.minimum(found_from, fitted.high)
            result.append((num_trials, found_from))
    return tuple(result)


def _plausible_sds(rng: np.random.Generator, run_sd: float, freedom: int | None) -> Floats:
    """Draw standard deviations that explain the measured one; a small one counts as in `effect`, with `LEAST_SD`."""
    if freedom is None:
        return np.full(_NUM_SIMULATED, run_sd)
    squares = freedom * run_sd**2 + LEAST_SD**2
    return np.minimum(np.sqrt(squares / rng.chisquare(freedom + 1, _NUM_SIMULATED)), MOST_SD)


def num_trials_with(num_candidates: int) -> int:
    """Return the number of trials of both arms after which B has `num_candidates`."""
    position, left = 0, num_candidates
    while left:
        left -= arm_of(position) == "B"
        position += 1
    return position
