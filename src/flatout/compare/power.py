"""State what a comparison can show: the trials that a slowdown takes, and the slowdown that the budget's trials find.

In: the run-to-run noise of the first trials. Out: a `Power`. The same fit, analyses and order of trials that decide the
comparison are applied to simulated trials with that noise and no drift. It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flatout.compare.runner import arm_of
from flatout.records.comparison import Power
from flatout.verdict.arms import ANALYSES
from flatout.verdict.effect import LEAST_SD, fit_effect

WANTED_POWER = 0.8
_NUM_SIMULATED = 400
_SEED = 20
_DETECTABLE = tuple(math.log1p(0.005 * step) for step in range(2, 201))  # 1 % to 100 %, in steps of 0.5 %


def power(run_sd: float, *, effect: float, gate: float | None, trial_s: float, num_affordable: int) -> Power:
    """Return the power to find a slowdown of `effect`: one that is above the gate, if there is a gate.

    `num_affordable` counts the trials of both arms together.
    """
    noise_sd = max(run_sd, LEAST_SD / 2)
    threshold = math.log1p(gate) if gate is not None else 0.0
    shares = list(_found_by(noise_sd, math.log1p(effect), threshold))
    needed = next((num_trials for num_trials, share in shares if share >= WANTED_POWER), None)
    return Power(
        run_sd=run_sd,
        trial_s=trial_s,
        effect=effect,
        num_trials=needed,
        num_affordable=num_affordable,
        detectable=_detectable(noise_sd, threshold, num_affordable),
    )


def _found_by(noise_sd: float, log_effect: float, log_threshold: float) -> Iterator[tuple[int, float]]:
    """Yield, for each analysis, the trials of both arms and the share of comparisons decided by then."""
    is_found = np.zeros(_NUM_SIMULATED, dtype=np.bool_)
    for num_trials, level, logs in _simulated(noise_sd):
        slower = log_effect - log_threshold
        is_candidate = [arm_of(position) == "B" for position in range(num_trials)]
        shifted = logs + slower * np.array(is_candidate)
        fitted = fit_effect(shifted, range(num_trials), is_candidate)
        if fitted is not None:
            _, high = fitted.interval(level)
            is_found |= high < 0  # B is shown to be slower
        yield num_trials, float(is_found.mean())


def _simulated(noise_sd: float) -> Iterator[tuple[int, float, NDArray[np.float64]]]:
    """Yield the trials, the level and the simulated log costs of each analysis; all have the same first trials."""
    most = _num_trials(ANALYSES[-1].num_fresh)
    logs = np.random.default_rng(_SEED).normal(0, noise_sd, (_NUM_SIMULATED, most))
    for analysis in ANALYSES:
        num_trials = _num_trials(analysis.num_fresh)
        yield num_trials, analysis.level, logs[:, :num_trials]


def _num_trials(num_candidates: int) -> int:
    """Return the trials of both arms when B has that many."""
    position, left = 0, num_candidates
    while left:
        left -= arm_of(position) == "B"
        position += 1
    return position


def _detectable(noise_sd: float, log_threshold: float, num_affordable: int) -> float | None:
    """Return the smallest slowdown that the affordable trials find; None if above 100 %."""
    low, high = 0, len(_DETECTABLE) - 1
    if not _is_found(noise_sd, _DETECTABLE[high], log_threshold, num_affordable):
        return None
    while low < high:
        middle = (low + high) // 2
        if _is_found(noise_sd, _DETECTABLE[middle], log_threshold, num_affordable):
            high = middle
        else:
            low = middle + 1
    return math.expm1(_DETECTABLE[low])


def _is_found(noise_sd: float, log_effect: float, log_threshold: float, num_affordable: int) -> bool:
    share = 0.0
    for num_trials, found in _found_by(noise_sd, log_effect, log_threshold):
        if num_trials > num_affordable:
            break
        share = found
    return share >= WANTED_POWER
