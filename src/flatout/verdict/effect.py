"""Estimate the effect of a candidate from all trials of both arms, with an interval that allows for what is unknown.

In: the logarithms of the costs of trials in the order in which they ran, and which of them are the candidate's.
Out: the log speedup, its interval at any level, and the probability that it is above a value. It decides nothing.

The log cost of trial t is `a(block) - effect * is_candidate(t) + noise`, with noise ~ N(0, sigma^2 V). V is the sum of
run noise (1; the candidate's may differ), a steady drift, a warming of the first trials, and a random walk, all
relative to sigma: the model needs no scale. A block is a stretch of trials on the same machine without an
interruption; the levels of two blocks are not compared. Effect and sigma follow from generalised least squares. Few
trials cannot show how strong walk and warming are, nor whether the candidate is noisier. So several models are fitted,
each with its restricted likelihood (Patterson and Thompson 1971), and the interval is the hull of the plausible ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.verdict.arrangement import Arrangement
from flatout.verdict.shared_error import NO_SHARED_ERROR, SharedError
from flatout.verdict.student import normal_quantile, t_quantile

Floats = NDArray[np.float64]

SLOPE = 0.2  # standard deviation of the drift per trial, in sigmas
WALKS = (0.0, 0.3)  # variances of the walk per trial, in squared sigmas
# The candidate's run variance over the baseline's, and how common that is. The interval holds for each. Estimate and
# probabilities are means over the models, among which a candidate that is much noisier is the exception.
NOISE_RATIOS = {1.0: 1.0, 9.0: 0.3, 36.0: 0.1}


class Warming(NamedTuple):
    """How much slower the first trials of a block may be, as standard deviations in sigmas."""

    first: float  # of the first trial alone: files that are not cached yet
    decaying: float  # of a delay that falls to 1 / e in `trials` trials
    trials: float


# Usually a slight warming; or a first trial or several that are slower by so much that their times say nothing.
WARMINGS = (
    Warming(first=0.0, decaying=2.0, trials=1.5),
    Warming(first=30.0, decaying=2.0, trials=1.5),
    Warming(first=0.0, decaying=30.0, trials=1.5),
    Warming(first=0.0, decaying=30.0, trials=4.0),
)
PLAUSIBLE = 0.3  # a model with at least this share of the best likelihood widens the interval
_MODELS = tuple(itertools.product(WALKS, NOISE_RATIOS, WARMINGS))
_ALIKE = [_MODELS.index((walk, 1.0, warming)) for walk, _, warming in _MODELS]
_PRIORS = np.array([NOISE_RATIOS[ratio] for _, ratio, _ in _MODELS])
# A run-to-run spread below this is never believed outright: it enters as one more observation of the spread.
LEAST_SD = 0.01
# No machine on which a tuning makes sense has a larger one (trials of which three in ten take twice as long: 0.32). So
# an interval is never wider than this spread would make it, if it were known, unless the trials have a larger one.
MOST_SD = 0.35


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The log speedup under each model; arrays have the shape (models, tunings)."""

    means: Floats
    errors: Floats  # standard errors
    likelihoods: Floats  # relative to the best model's: at most 1
    probabilities: Floats  # of the models, after the trials: they sum to 1
    degrees_of_freedom: int
    most_errors: Floats  # standard errors for the largest sensible spread; infinite if the trials have a larger one
    above: Floats  # how far the loads of other processes may have raised the estimates above the truth; (models,)
    below: Floats  # the same, how far they may have lowered them
    shared: SharedError = NO_SHARED_ERROR

    @property
    def estimate(self) -> Floats:
        """The mean of the models' estimates, weighted by their probabilities; shape (tunings,)."""
        return np.asarray((self.probabilities * self.means).sum(axis=0))

    @property
    def error(self) -> Floats:
        """The mean of the models' standard errors, weighted by their probabilities; shape (tunings,)."""
        return np.asarray((self.probabilities * self._all_errors).sum(axis=0))

    @property
    def _all_errors(self) -> Floats:
        of_loads = np.maximum(self.above, self.below)[:, None]
        return np.asarray(np.sqrt(self.errors**2 + self.shared.sd**2 + of_loads**2))

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return the hull of the plausible models' intervals, each of which misses the truth with this probability."""
        of_shared = t_quantile(level / 2, self.shared.degrees_of_freedom) * self.shared.sd
        of_shared = min(of_shared, normal_quantile(level / 2) * self.shared.most_sd)
        of_runs = t_quantile(level / 2, self.degrees_of_freedom) * self.errors
        at_most = normal_quantile(level / 2) * self.most_errors
        half = np.hypot(np.minimum(of_runs, at_most), of_shared)
        is_plausible = self.likelihoods >= PLAUSIBLE
        low = np.where(is_plausible, self.means - half - self.above[:, None], np.inf).min(axis=0)
        high = np.where(is_plausible, self.means + half + self.below[:, None], -np.inf).max(axis=0)
        return low, high

    def probability_above(self, value: float) -> Floats:
        """Return the probability that the log speedup exceeds the value, with a flat prior, over all models."""
        from scipy.special import stdtr  # type: ignore[import-untyped]

        above = stdtr(self.degrees_of_freedom, (self.means - value) / self._all_errors)
        return np.asarray((self.probabilities * above).sum(axis=0))


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """What the fits of one arrangement of trials need, for each model."""

    weights: Floats  # of the trials in the estimate; (models, trials)
    variances: Floats  # of the estimate, in squared sigmas; (models,)
    residual_forms: Floats  # y' R y is the weighted sum of squared residuals; (models, trials, trials)
    log_dets: Floats  # of the restricted likelihood; (models,)
    variances_if_alike: Floats  # the same if the candidate were as noisy as the baseline; (models,)
    degrees_of_freedom: int


def fit_effect(
    logs: Floats,
    arrangement: Arrangement,
    *,
    shared: SharedError = NO_SHARED_ERROR,
    shifts: Sequence[float] = (),
) -> Effect | None:
    """Fit the log costs of many tunings with one arrangement of trials; `logs` has the shape (tunings, trials).

    `shared` is the error that the costs of an arm have in common. `shifts` says how far something else may have moved
    the log cost of each trial, and to which side: by nothing, by all of it, or anything between; () for not at all.
    Returns None if no effect can be estimated: no block has trials of
    both arms, or too few trials are left to estimate the spread.
    """
    found = design(arrangement)
    if found is None:
        return None
    centred = logs - logs[:, :1]
    projected = centred @ found.residual_forms  # (models, tunings, trials)
    squares = (projected * centred).sum(axis=2) + LEAST_SD**2
    freedom = found.degrees_of_freedom
    sigmas = np.sqrt(squares / freedom)
    log_likelihoods = -0.5 * found.log_dets[:, None] - 0.5 * freedom * np.log(squares)
    likelihoods = np.exp(log_likelihoods - log_likelihoods.max(axis=0))
    weights = _PRIORS[:, None] * likelihoods
    moved = found.weights * np.array(shifts) if shifts else np.zeros_like(found.weights)
    return Effect(
        means=found.weights @ centred.T,
        errors=np.sqrt(found.variances)[:, None] * sigmas,
        likelihoods=likelihoods,
        probabilities=weights / weights.sum(axis=0),
        degrees_of_freedom=freedom,
        most_errors=np.where(sigmas <= MOST_SD, MOST_SD * np.sqrt(found.variances_if_alike)[:, None], np.inf),
        above=np.maximum(moved, 0.0).sum(axis=1),
        below=np.maximum(-moved, 0.0).sum(axis=1),
        shared=shared,
    )


@lru_cache(maxsize=512)
def design(arrangement: Arrangement) -> Design | None:
    """Return what the fits of this arrangement need; None if no effect can be estimated from such trials."""
    candidate = np.array(arrangement.is_candidate, dtype=np.float64)
    block_of = np.array(arrangement.blocks)
    levels = [(block_of == block).astype(np.float64) for block in sorted(set(arrangement.blocks))]
    regressors = np.stack([*levels, -candidate], axis=1)
    num_trials, num_parameters = regressors.shape
    if num_trials <= num_parameters or np.linalg.matrix_rank(regressors) < num_parameters:
        return None
    covariances = _covariances(np.array(arrangement.positions, dtype=np.float64), candidate, block_of)
    inverses = np.linalg.inv(covariances)
    weighted = regressors.T @ inverses  # (models, parameters, trials)
    parameter_covariances = np.linalg.inv(weighted @ regressors)
    estimators = parameter_covariances @ weighted
    log_dets = np.linalg.slogdet(covariances)[1] - np.linalg.slogdet(parameter_covariances)[1]
    return Design(
        weights=estimators[:, -1],
        variances=parameter_covariances[:, -1, -1],
        residual_forms=inverses - weighted.transpose(0, 2, 1) @ estimators,
        log_dets=log_dets,
        variances_if_alike=parameter_covariances[_ALIKE, -1, -1],
        degrees_of_freedom=num_trials - num_parameters,
    )


def _covariances(positions: Floats, candidate: Floats, block_of: NDArray[np.int64]) -> Floats:
    """Return the covariance of the trials under each model, in squared sigmas; (models, trials, trials)."""
    times = positions - positions[0]
    is_same_block = block_of[:, None] == block_of[None, :]
    since_start = times - np.array([times[block_of == block][0] for block in block_of])
    slope = SLOPE**2 * np.outer(times, times)
    walk = np.minimum.outer(times, times)
    covariances = []
    for step, ratio, warming in _MODELS:
        delays = warming.decaying * np.exp(-since_start / warming.trials)
        firsts = warming.first * (since_start == 0)
        runs = np.diag(1 + (ratio - 1) * candidate + firsts**2)
        covariances.append(runs + slope + step * walk + np.outer(delays, delays) * is_same_block)
    return np.array(covariances)


def as_speedup(log: float) -> float:
    """Return the speedup of a log speedup; it stays finite, however large the logarithm is."""
    return math.exp(min(log, 700.0))
