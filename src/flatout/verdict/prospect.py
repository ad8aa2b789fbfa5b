"""Say what more trials would show: of a candidate that is undecided, and of a budget before its first trial.

`what_next` has the conditional power of each analysis to come: a candidate that is unlikely to be called better is
given up early, and "undecided" comes with what more time would buy. `detectable_effect` and `trials_for` plan a tuning.
All use the analyses that decide (`analyses`), and none makes a claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Unpack

import msgspec
import numpy as np

from flatout.errors import UsageError
from flatout.records.trial import TrialResult
from flatout.records.verdict import Prospect
from flatout.verdict.analyses import ANALYSES, UNDECIDED, Analysis, analyse, used_trials, worth_more
from flatout.verdict.arms import MIN_EFFECT, Asked, Question, analyses_of
from flatout.verdict.arrangement import Arrangement, planned
from flatout.verdict.effect import Effect, Floats, design, fit_effect
from flatout.verdict.shared_error import NO_SHARED_ERROR, SharedError
from flatout.verdict.student import normal_quantile, t_quantile

WANTED_POWER = 0.8
NUM_SIMULATED = 500
FLOOR_TRIALS = 3
USUAL_LEVEL = 0.009  # of an early analysis
LEAST_NOISE = 0.001  # less makes no difference to what can be detected
_GRID_STEP = 2.0  # what is detectable is simulated at noises that are powers of it, and interpolated


def what_next(trials: Sequence[TrialResult], candidate: str, **asked: Unpack[Asked]) -> tuple[Prospect, ...]:
    """Return what each analysis to come is likely to show; the arguments are those of `judge_arms`.

    Returns () if the candidate is decided, no analysis is left, or the trials so far give no estimate.
    """
    question = Question(candidate=candidate, **asked)
    analyses, _ = analyses_of(question, trials, is_last=False)
    if analyses and analyses[-1].claims[0] != UNDECIDED:
        return ()
    arms = question.arms(trials)
    forecasts = chances(
        arms.logs,
        arms.arrangement,
        num_run=arms.num_run,
        num_screened=question.num_screened,
        min_effect=question.min_effect,
        shared=arms.shared,
    )
    return tuple(
        Prospect(
            num_trials=len(later.arrangement.positions) - len(arms.arrangement.positions),
            num_fresh=later.arrangement.num_fresh - arms.arrangement.num_fresh,
            total_fresh=later.arrangement.num_fresh - arms.arrangement.num_fresh + arms.num_run,
            better=float(later.better[0]),
            worse=float(later.worse[0]),
            equivalent=float(later.equivalent[0]),
        )
        for later in forecasts
    )


def is_worth_more(prospects: Sequence[Prospect], *, max_trials: int | None = None) -> bool:
    """Whether more trials, at most `max_trials`, are likely enough to show that the candidate is better."""
    affordable = [prospect for prospect in prospects if max_trials is None or prospect.num_trials <= max_trials]
    return any(prospect.better >= worth_more(prospect.total_fresh - prospect.num_fresh) for prospect in affordable)


class Chances(msgspec.Struct, frozen=True, kw_only=True):
    """The probabilities of the verdicts by one analysis to come; arrays have the shape (tunings,)."""

    arrangement: Arrangement  # at that analysis, if the arms alternate until then
    better: Floats
    worse: Floats
    equivalent: Floats


def chances(
    logs: Floats,
    arrangement: Arrangement,
    *,
    num_run: int,
    num_screened: int,
    min_effect: float,
    shared: SharedError = NO_SHARED_ERROR,
) -> list[Chances]:
    """Return the probabilities of the verdicts by each analysis to come; `logs` has the shape (tunings, trials).

    `num_run` fresh trials of the candidate ran so far, of which the arrangement has those that count.
    "By" an analysis takes the largest probability up to it: less than the truth, as several may decide.
    """
    result: list[Chances] = []
    so_far = np.zeros((3, len(logs)))
    for analysis in ANALYSES:
        if analysis.num_fresh <= num_run:
            continue
        later = arrangement.followed_by(arrangement.alternating(analysis.num_fresh - num_run))
        places, divisor = used_trials(later, analysis.level, num_screened)
        present = tuple(place for place in places if place < len(arrangement.positions))
        is_continued = any(arrangement.is_candidate[place] for place in present)
        if not is_continued:  # the trial that chose the candidate is all that is known of it, and will not count
            present = tuple(range(len(arrangement.positions)))
        effect = fit_effect(logs[:, present], arrangement.select(present), shared=shared) if present else None
        if effect is None:
            continue
        changes = _Changes.of(effect, arrangement.select(present), later.select(places), is_continued=is_continued)
        probabilities = changes.probabilities(analysis, divisor, math.log1p(min_effect))
        if not is_continued:  # the best of several looks better by chance
            probabilities[0] *= effect.probability_above(0.0) ** (num_screened - 1)
        so_far = np.maximum(so_far, probabilities)
        better, worse, equivalent = so_far
        result.append(Chances(arrangement=later, better=better, worse=worse, equivalent=equivalent))
    return result


class _Changes(msgspec.Struct, frozen=True, kw_only=True):
    """How the estimate may change until a later analysis; arrays have the shape (models, tunings).

    With a flat prior, the later estimate is the present one plus a change, whose variance is what the trials in between
    take off the variance of the estimate. If the later estimate has none of the candidate's present trials, the two
    differ by the errors of both: `is_continued` is then False.
    """

    effect: Effect
    sd: Floats  # of the change
    later_error: Floats
    most_error: Floats  # at the later analysis, for the largest spread that is possible
    later_freedom: int

    @classmethod
    def of(cls, effect: Effect, now: Arrangement, later: Arrangement, *, is_continued: bool) -> _Changes:
        before, after = design(now), design(later)
        assert before is not None
        assert after is not None
        sigmas = effect.errors / np.sqrt(before.variances)[:, None]
        variances = before.variances + after.variances
        if is_continued:
            variances = np.maximum(before.variances - after.variances, 1e-12)
        return cls(
            effect=effect,
            sd=sigmas * np.sqrt(variances)[:, None],
            later_error=np.hypot(sigmas * np.sqrt(after.variances)[:, None], effect.shared.sd),
            most_error=effect.most_errors * np.sqrt(after.variances_if_alike / before.variances_if_alike)[:, None],
            later_freedom=after.degrees_of_freedom,
        )

    def probabilities(self, analysis: Analysis, divisor: int, margin: float) -> Floats:
        """Return the probabilities of better, worse and equivalent at the analysis; (3, tunings)."""
        level = analysis.level / divisor
        half = self._hull_factor() * t_quantile(level / 2, self.later_freedom) * self.later_error
        half = np.minimum(half, normal_quantile(level / 2) * self.most_error)
        least = np.maximum(half, margin)
        most = margin - t_quantile(analysis.equivalence_level / divisor, self.later_freedom) * self.later_error
        each = [1 - self._below(least), self._below(-least), self._within(most)]
        return np.array([(self.effect.probabilities * one).sum(axis=0) for one in each])

    def _hull_factor(self) -> Floats:
        """Return how much wider the interval is for the doubt between models; more trials resolve about half of it."""
        low, high = self.effect.interval(USUAL_LEVEL)
        of_one = 2 * t_quantile(USUAL_LEVEL / 2, self.effect.degrees_of_freedom) * self.effect.error
        return np.sqrt(np.maximum((high - low) / of_one, 1.0))

    def _within(self, most: Floats) -> Floats:
        """Return the probability that the later estimate is nearer to 0 than this; 0 where it is not positive."""
        is_possible = most > 0
        if not is_possible.any():  # too noisy to show that nothing changed
            return np.zeros_like(most)
        return np.where(is_possible, self._below(most) - self._below(-most), 0.0)

    def _below(self, value: Floats) -> Floats:
        """Return the probability that the later estimate is below the value."""
        from scipy.special import stdtr  # type: ignore[import-untyped]

        return np.asarray(stdtr(self.effect.degrees_of_freedom, (value - self.effect.means) / self.sd))


def detectable_effect(
    noise: float,
    num_trials: float,
    *,
    num_screened: int,
    num_baselines: int = FLOOR_TRIALS,
    min_effect: float = MIN_EFFECT,
    power: float = WANTED_POWER,
) -> float | None:
    """Return the smallest gain (0.03: 3 %) that is called better with this power in at most `num_trials` trials.

    `noise` is the standard deviation of a trial's log cost. The trials are those of both arms: first `num_baselines` of
    the baseline, then the arms alternate. Returns None if there is no analysis within so few trials.
    """
    below = _GRID_STEP ** math.floor(math.log(max(noise, LEAST_NOISE), _GRID_STEP))
    curves = [
        _detectable(grid_noise, num_baselines, num_screened, min_effect, power)
        for grid_noise in (below, below * _GRID_STEP)
    ]
    place = sum(count <= num_trials for count, _ in curves[0]) - 1
    if place < 0:
        return None
    low, high = (math.log(curve[place][1]) for curve in curves)
    share = math.log(max(noise, LEAST_NOISE) / below, _GRID_STEP)
    return math.expm1(math.exp(low + share * (high - low)))


def trials_for(
    effect: float,
    noise: float,
    *,
    num_screened: int,
    num_baselines: int = FLOOR_TRIALS,
    min_effect: float = MIN_EFFECT,
    power: float = WANTED_POWER,
) -> int | None:
    """Return how many trials of both arms show a gain of `effect` (0.03: 3 %) with this power; None: no number does."""
    if effect <= min_effect:
        raise UsageError(f"the effect must be above {min_effect:g}, which is called equivalent, but got {effect:g}")
    for analysis in ANALYSES:
        num_trials = _plan(num_baselines, num_screened).end_of_fresh(analysis.num_fresh)
        detectable = detectable_effect(
            noise,
            num_trials,
            num_baselines=num_baselines,
            num_screened=num_screened,
            min_effect=min_effect,
            power=power,
        )
        if detectable is not None and detectable <= effect:
            return num_trials
    return None


@lru_cache(maxsize=64)
def _detectable(
    noise: float, num_baselines: int, num_screened: int, min_effect: float, power: float
) -> list[tuple[int, float]]:
    """Return, for each analysis, its number of trials and the log effect that is found by then with this power.

    An effect shifts the estimate and its interval, and changes nothing else: so one simulation without an effect serves
    for all effects.
    """
    arrangement = _plan(num_baselines, num_screened)
    logs = np.random.RandomState(20240611).normal(0.0, noise, (NUM_SIMULATED, len(arrangement.positions)))
    margin = math.log1p(min_effect)
    found_from = np.full(NUM_SIMULATED, np.inf)
    curve = []
    for analysis in ANALYSES:
        num_trials = arrangement.end_of_fresh(analysis.num_fresh)
        fitted = analyse(
            logs[:, :num_trials],
            arrangement.first(num_trials),
            analysis,
            num_screened=num_screened,
            min_effect=min_effect,
        )
        if fitted is not None:
            found_from = np.minimum(found_from, np.maximum(-fitted.low, margin - fitted.effect.estimate))
            curve.append((num_trials, float(np.quantile(found_from, power))))
    return curve


@lru_cache(maxsize=16)
def _plan(num_baselines: int, num_screened: int) -> Arrangement:
    """Return the arrangement of a tuning whose arms alternate after the first baselines."""
    chosen = (num_baselines,) if num_screened > 1 else ()
    return planned("A" * num_baselines + "BA" * (ANALYSES[-1].num_fresh + len(chosen)), chosen=chosen)
