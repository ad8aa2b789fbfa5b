"""The analyses of a candidate: when the trials are looked at, at which level, and what an analysis claims.

An analysis follows the candidate's fresh trials number 1, 2, 3, 4, 6, 8, 12 and 20. Everything is vectorised over
tunings, so that simulations measure the rules that decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.verdict.arrangement import Arrangement
from flatout.verdict.effect import Effect, Floats, design, fit_effect
from flatout.verdict.shared_error import NO_SHARED_ERROR, SharedError
from flatout.verdict.student import t_quantile

MIN_CANDIDATES = 2  # a single trial says nothing about the candidate's own spread
MIN_BASELINES = 2
# A candidate with a smaller probability of being called better is given up; after many fresh trials, the rest of the
# plan is long, and the probability must be higher.
WORTH_MORE, WORTH_MANY_MORE = 0.1, 0.3
MANY_FRESH = 6

Claims = NDArray[np.int64]
UNDECIDED, BETTER, WORSE, EQUIVALENT = 0, 1, -1, 2


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the trials so far."""

    num_fresh: int  # fresh trials of the candidate: those that did not choose it
    level: float  # two-sided, of better and worse
    equivalence_level: float  # one-sided, of each of the two tests for equivalence


# The levels sum to 5.8 %; because the analyses share most of their trials, at most 5 % of tunings with identical arms
# have a false claim at any of them (`benchmarks/verdict_scenarios.py`).
ANALYSES = (
    Analysis(num_fresh=1, level=0.009, equivalence_level=0.003),
    Analysis(num_fresh=2, level=0.009, equivalence_level=0.003),
    Analysis(num_fresh=3, level=0.009, equivalence_level=0.004),
    Analysis(num_fresh=4, level=0.008, equivalence_level=0.005),
    Analysis(num_fresh=6, level=0.007, equivalence_level=0.006),
    Analysis(num_fresh=8, level=0.006, equivalence_level=0.008),
    Analysis(num_fresh=12, level=0.005, equivalence_level=0.010),
    Analysis(num_fresh=20, level=0.005, equivalence_level=0.011),
)


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """An analysis of many tunings with one arrangement."""

    analysis: Analysis
    arrangement: Arrangement  # the trials that it uses
    divisor: int  # of the levels: the number screened if the trials that chose the candidate count, else 1
    effect: Effect
    low: Floats  # the interval of the log speedup; (tunings,)
    high: Floats
    claims: Claims


class PlannedAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """An analysis of the plan under one model: how precise it is, and at which level."""

    num_fresh: int
    variance: float  # of the estimate, in squared sigmas
    degrees_of_freedom: int
    level: float  # two-sided


def worth_more(num_fresh: int) -> float:
    """Return the probability of being called better below which a candidate is given up, by its fresh trials so far."""
    return WORTH_MORE if num_fresh < MANY_FRESH else WORTH_MANY_MORE


def next_analysis(num_fresh: int) -> Analysis | None:
    """Return the first analysis after more than `num_fresh` fresh trials; None if there is none."""
    return next((analysis for analysis in ANALYSES if analysis.num_fresh > num_fresh), None)


def analyse(
    logs: Floats,
    arrangement: Arrangement,
    analysis: Analysis,
    *,
    num_screened: int,
    min_effect: float,
    shared: SharedError = NO_SHARED_ERROR,
    shifts: Sequence[float] = (),
) -> Fitted | None:
    """Analyse all trials of the arrangement; `logs` has the shape (tunings, trials). None if there are too few."""
    places, divisor = used_trials(arrangement, analysis.level, num_screened)
    used = arrangement.select(places)
    if used.num_candidates < MIN_CANDIDATES or used.num_baselines < MIN_BASELINES:
        return None
    of_used = [shifts[place] for place in places] if shifts else ()
    effect = fit_effect(logs[:, places], used, shared=shared, shifts=of_used)
    if effect is None:
        return None
    low, high = effect.interval(analysis.level / divisor)
    claims = _claims(effect, low, high, analysis.equivalence_level / divisor, math.log1p(min_effect))
    return Fitted(
        analysis=analysis, arrangement=used, divisor=divisor, effect=effect, low=low, high=high, claims=claims
    )


def _claims(effect: Effect, low: Floats, high: Floats, equivalence_level: float, margin: float) -> Claims:
    mean = effect.estimate
    # Two one-sided tests (Schuirmann 1987): the effect is above -margin, and below it.
    lowest, highest = effect.interval(2 * equivalence_level)
    is_equivalent = (lowest > -margin) & (highest < margin)
    claims = np.where(is_equivalent, EQUIVALENT, UNDECIDED)
    claims = np.where((low > 0) & (mean > margin), BETTER, claims)
    return np.where((high < 0) & (mean < -margin), WORSE, claims)


@lru_cache(maxsize=512)
def used_trials(arrangement: Arrangement, level: float, num_screened: int) -> tuple[tuple[int, ...], int]:
    """Return the places of the trials that an analysis uses, and what its levels are divided by.

    The trials that chose the candidate look good by chance. Either they count, and the levels are divided by the number
    of candidates that were screened, so that they hold for whichever looked best; or they do not count. Whichever is
    expected to give the narrower interval is taken: that does not depend on any result.
    """
    everything = tuple(range(len(arrangement.positions)))
    fresh_only = tuple(
        place for place in everything if arrangement.is_fresh[place] or not arrangement.is_candidate[place]
    )
    if len(fresh_only) == len(everything):
        return everything, 1
    if _half_width(arrangement.select(fresh_only), level) < _half_width(arrangement, level / num_screened):
        return fresh_only, 1
    return everything, num_screened


def _half_width(arrangement: Arrangement, level: float) -> float:
    """Return half of the expected width of the interval in sigmas, under the simplest model."""
    if arrangement.num_candidates < MIN_CANDIDATES or arrangement.num_baselines < MIN_BASELINES:
        return math.inf
    simplest = design(arrangement)
    if simplest is None:
        return math.inf
    return float(t_quantile(level / 2, simplest.degrees_of_freedom) * math.sqrt(simplest.variances[0]))


def plan_steps(
    made: Sequence[Fitted], arrangement: Arrangement, *, num_run: int, num_screened: int, model: int
) -> tuple[PlannedAnalysis, ...]:
    """Return the analyses that were made, and those that would have followed with alternating trials.

    `arrangement` is that of the last one that was made, after `num_run` fresh trials of the candidate. After an
    analysis that came early, because the budget had ended, none would have followed.
    """
    steps = [_step(fitted.analysis, fitted.arrangement, fitted.divisor, model) for fitted in made]
    if made[-1].analysis.num_fresh > num_run:
        return tuple(steps)
    for analysis in ANALYSES:
        if analysis.num_fresh > num_run:
            later = arrangement.followed_by(arrangement.alternating(analysis.num_fresh - num_run))
            places, divisor = used_trials(later, analysis.level, num_screened)
            steps.append(_step(analysis, later.select(places), divisor, model))
    return tuple(steps)


def _step(analysis: Analysis, arrangement: Arrangement, divisor: int, model: int) -> PlannedAnalysis:
    fit = design(arrangement)
    assert fit is not None
    return PlannedAnalysis(
        num_fresh=analysis.num_fresh,
        variance=float(fit.variances[model]),
        degrees_of_freedom=fit.degrees_of_freedom,
        level=analysis.level / divisor,
    )
