"""Learn corrections and interval widths from a history of predicted and measured speedups.

A record's score is log(measured / predicted), divided by the half width of the replayed interval on that side: a score
of 1 is the end of the interval. So the error learned for a family shifts an uncertain prediction more than a certain
one.

*Correction*: a family's mean score over tunings, shrunk toward 0 (empirical Bayes, a normal prior): one tuning counts
for less than a third, and tunings that contradict each other count for little. A record of the same change with about
the same prediction is most likely the same job, tuned again: its error beyond its family's counts by n / (n + 1). A
record of a single trial is noisy, so it counts less: by the weight of a measurement with a known variance against the
prior's.

*Width*: split conformal prediction (Vovk et al., 2005; Angelopoulos and Bates, arXiv:2107.07511): the interval is
scaled so that it contains the share `NOMINAL` of the reference pairs and of the history, each corrected by the others.
It then contains this share of new records, if these are like the old ones. A record's own noise is removed from its
score by the variances: if both are normal, the scaled interval is slightly too wide, never too narrow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from flatout.input_files import decode_json, read_bytes
from flatout.records.prediction import NOMINAL, PredictionRecord

MAX_SCORE = 2.0  # an outlier counts as this much
BETWEEN_JOBS_SD = 0.6  # standard deviation of the scores of a family's jobs, before any record
BETWEEN_FAMILIES_SD = 0.25  # standard deviation of families' means
PRIOR_WEIGHT = 3.0  # weight of the prior of BETWEEN_JOBS_SD, in tuning runs
ALIKE = 0.1  # predictions whose log speedups differ by less are about the same
MIN_OWN = 20  # with at least as many scores, a family has its own width
MAX_OUTCOMES = 400  # number of newest records; older versions of torch and Flatout predict differently
MIN_HALF_WIDTH = math.log(1.03)  # steps differ by as much anyway
DEFAULT_EFFECT = 0.3  # half width of records without an interval, as a share of the log speedup
REFERENCE = Path(__file__).parent / "reference.jsonl"
Model = tuple[float, float, float]  # speedup, low, high


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """A corrected prediction, with the interval learned from the history."""

    speedup: float
    low: float
    high: float
    num_behind: int  # number of scores that determine the interval's width


class _Score(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    change: str
    log_predicted: float
    tuning: str
    value: float
    noise: float = 0.0  # standard deviation of the value due to measurement noise
    clipped: float  # the value, within `MAX_SCORE`
    weight: float


class PredictionCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections and widths from a history; with an empty history, only the width, from the reference pairs."""

    scores: tuple[_Score, ...] = ()  # of the history
    residuals: tuple[tuple[str, float], ...] = ()  # family and absolute score, of the reference and the history

    def of(self, family: str, change: str, model: Model) -> Learned:
        speedup, low, high = model
        up, down = _half_widths(speedup, low, high)
        shift = _shift(self.scores, family, change, math.log(speedup))
        middle = speedup * math.exp(shift * (up if shift > 0 else down))
        times, num_behind = self.width(family)
        return Learned(
            speedup=middle,
            low=middle * math.exp(-times * down),
            high=middle * math.exp(times * up),
            num_behind=num_behind,
        )

    def width(self, family: str) -> tuple[float, int]:
        """Return the factor that scales the replayed interval, and the number of records that determine it."""
        own = [value for name, value in self.residuals if name == family]
        values = own if len(own) >= MIN_OWN else [value for _, value in self.residuals]
        return conformal(values), len(values)

    def num_outcomes(self, family: str) -> int:
        return sum(score.family == family for score in self.scores)


def calibrate(
    history: Iterable[PredictionRecord], reference: Iterable[PredictionRecord] | None = None
) -> PredictionCalibration:
    """Return the calibration learned from a history, which can be empty."""
    scores = tuple(map(_score, [each for each in history if each.predicted > 0 and each.measured > 0][-MAX_OUTCOMES:]))
    shipped = tuple(map(_score, reference if reference is not None else reference_outcomes()))
    residuals = [(score.family, abs(score.value)) for score in shipped]
    by_family: dict[str, list[_Score]] = defaultdict(list)
    for score in scores:
        by_family[score.family].append(score)
    for score in scores:
        others = [other for other in by_family[score.family] if other is not score]
        shift = _shift(others, score.family, score.change, score.log_predicted)
        residuals.append((score.family, math.sqrt(max((score.value - shift) ** 2 - score.noise**2, 0.0))))
    return PredictionCalibration(scores=scores, residuals=tuple(residuals))


@cache
def reference_outcomes() -> tuple[PredictionRecord, ...]:
    """Return the pairs that the project measured itself; `benchmarks/predict_error.py` writes them."""
    return tuple(decode_json(line, type=PredictionRecord) for line in read_bytes(REFERENCE).splitlines())


def conformal(values: Sequence[float]) -> float:
    """Return the bound within which `NOMINAL` of similar future values stay; the largest value if there are too few."""
    if not values:
        return 1.0
    place = math.ceil((len(values) + 1) * NOMINAL)
    return sorted(values)[min(place, len(values)) - 1]


def median_absolute_error(history: Iterable[PredictionRecord]) -> float | None:
    """Return the median relative error of the predicted speedups; None without records."""
    errors = [abs(outcome.predicted / outcome.measured - 1.0) for outcome in history if outcome.measured > 0]
    return float(np.median(errors)) if errors else None


def _score(outcome: PredictionRecord) -> _Score:
    predicted = math.log(outcome.predicted)
    up, down = _half_widths(outcome.predicted, outcome.low, outcome.high)
    off = math.log(outcome.measured) - predicted
    unit = up if off > 0 else down
    value, noise = off / unit, outcome.sd / unit
    return _Score(
        family=outcome.family,
        change=outcome.change,
        log_predicted=predicted,
        tuning=outcome.date,
        value=value,
        noise=noise,
        clipped=min(max(value, -MAX_SCORE), MAX_SCORE),
        weight=BETWEEN_JOBS_SD**2 / (BETWEEN_JOBS_SD**2 + noise**2),
    )


def _half_widths(speedup: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the upper and lower half widths of the interval, as logarithms."""
    if low is None or high is None or not 0 < low <= high:
        usual = MIN_HALF_WIDTH + DEFAULT_EFFECT * abs(math.log(speedup))
        return usual, usual
    return max(math.log(high / speedup), MIN_HALF_WIDTH), max(math.log(speedup / low), MIN_HALF_WIDTH)


def _shift(scores: Sequence[_Score], family: str, change: str, log_predicted: float) -> float:
    """Return the expected score of a prediction, from the scores of its family and of the same change."""
    by_tuning: dict[str, _WeightedMean] = defaultdict(_WeightedMean)
    alike = _WeightedMean()
    for score in scores:
        if score.family != family:
            continue
        by_tuning[score.tuning].add(score.clipped, score.weight)
        if score.change == change and abs(score.log_predicted - log_predicted) <= ALIKE:
            alike.add(score.clipped, score.weight)
    if not by_tuning:
        return 0.0
    means = np.array([tuning.mean for tuning in by_tuning.values()])
    # A tuning counts once, however many changes it tried, and less if all of its records are noisy.
    weights = np.array([tuning.max_weight for tuning in by_tuning.values()])
    count, middle = float(weights.sum()), float(np.average(means, weights=weights))
    # A few tunings show little of how much jobs differ, so the prior counts as some more of them.
    squares = float((weights * (means - middle) ** 2).sum()) + PRIOR_WEIGHT * BETWEEN_JOBS_SD**2
    between_jobs = squares / (max(count - 1, 0.0) + PRIOR_WEIGHT)
    of_family = middle * count / (count + between_jobs / BETWEEN_FAMILIES_SD**2)
    if not alike.weight:
        return of_family
    return of_family + (alike.mean - of_family) * alike.weight / (alike.weight + 1)


class _WeightedMean:
    """A weighted mean. Plain sums, because numpy takes ten times as long for the usual one to three values."""

    __slots__ = ("max_weight", "total", "weight")

    def __init__(self) -> None:
        self.total = self.weight = self.max_weight = 0.0

    def add(self, value: float, weight: float) -> None:
        self.total += value * weight
        self.weight += weight
        self.max_weight = max(self.max_weight, weight)

    @property
    def mean(self) -> float:
        return self.total / self.weight
