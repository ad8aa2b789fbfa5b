"""Correct the estimated gain of a candidate that was called better for selection bias, and return the gain to quote.

Pairs stop at the first analysis that decides, and only gains that are called better are quoted. If few gains are
found, their mean is well above the truth (the winner's curse). The likelihood *given* the claim removes this bias:
the likelihood of mean and spread, divided by the chance that any analysis makes the claim (Zhong and Prentice 2008,
Biostatistics 9:621; Ghosh, Zou and Wright 2008, Am. J. Hum. Genet. 82:1064, for selected genes). The quoted gain is the
median of the effect under this likelihood, for effects of at least the smallest one that counts, with a prior that
favours small ones. If the claim was certain anyway and the effect is large, that is the plain mean.

The chance is computed from simulated normal log ratios, judged by the rules of `judge`: the same analyses, levels,
orders, noise floor and smallest effect. Each simulated series is called better for effects above its own threshold, so
one pass gives the chance for all effects. The seed is fixed and the generator frozen (NEP 19), so the same data give
the same number. The simulation ignores the rule for spikes, and that a tuning run may stop between analyses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flatout.verdict.interim import InterimAnalysis
from flatout.verdict.paired import Estimate, fit
from flatout.verdict.student import t_quantile

Floats = NDArray[np.float64]

NUM_SIMULATED = 4000
NUM_SPREADS, NUM_EFFECTS = 16, 200
# Prior weight of an effect: 1 + this times the smallest effect over it. Small gains are more common; large gains all
# have about the same weight. Chosen by simulation, see `benchmarks/README.md`.
SMALL_WEIGHT = 4.0
# Number of standard errors above the smallest effect at which a claim was certain for any spread that the data allow.
CERTAIN = 40.0


def corrected(
    found: Estimate,
    analyses: Sequence[InterimAnalysis],
    orders: Sequence[str],
    *,
    min_effect: float,
    floor: tuple[float, int] | None,
    floor_below: int,
) -> float:
    """Return the log ratio to quote for an estimate that was called better (above 0) or worse (below 0).

    `analyses` are all analyses that were made or planned. `orders` are the orders of the pairs that were run; later
    pairs would have alternated. `floor` is a pair's spread according to the noise floor, with its degrees of freedom,
    used by analyses of fewer than `floor_below` pairs. The result is between the smallest effect that counts and the
    plain mean.
    """
    mean, error, margin = abs(found.mean), found.standard_error, math.log1p(min_effect)
    if error == 0 or mean - margin > CERTAIN * error:
        return found.mean
    planned = _as_planned(orders, analyses[-1].num_pairs)
    width = 1 / math.sqrt(found.degrees_of_freedom)  # about 1.4 times the width of the spread's logarithm
    spreads = found.sd * np.geomspace(math.exp(-2.5 * width), math.exp(4 * width), NUM_SPREADS)
    effects = np.linspace(margin, mean + 8 * error, NUM_EFFECTS)
    chances = [_chance(spread, effects, analyses, planned, margin, floor, floor_below) for spread in spreads]
    logs = _log_likelihood(found, mean, margin, spreads[:, None], effects[None, :]) - np.log(chances)
    weights = np.exp(logs - logs.max()).sum(axis=0)
    below = np.cumsum(weights) - weights / 2
    median = float(np.interp(weights.sum() / 2, below, effects))
    return math.copysign(min(median, mean), found.mean)


def _as_planned(orders: Sequence[str], num_pairs: int) -> tuple[str, ...]:
    planned = list(orders)
    while len(planned) < num_pairs:
        planned.append("BA" if planned[-1] == "AB" else "AB")
    return tuple(planned)


def _log_likelihood(found: Estimate, mean: float, margin: float, spread: Floats, effect: Floats) -> Floats:
    """Return the log likelihood of mean and sd, with the prior, on a grid even in effects and in log spreads."""
    freedom = found.degrees_of_freedom
    residuals = found.weight * (mean - effect) ** 2 + freedom * found.sd**2
    # The mean contributes 1 / spread, the sd 1 / spread^freedom, Jeffreys' prior 1 / spread^2. A step of the grid is as
    # wide as the spread.
    logs = -residuals / (2 * spread**2) - (freedom + 2) * np.log(spread) + np.log1p(SMALL_WEIGHT * margin / effect)
    return np.asarray(logs)


def _chance(
    spread: float,
    effects: Floats,
    analyses: Sequence[InterimAnalysis],
    orders: tuple[str, ...],
    margin: float,
    floor: tuple[float, int] | None,
    floor_below: int,
) -> Floats:
    """Return the chance of a claim of better at any analysis, for each effect."""
    threshold = np.full(NUM_SIMULATED, np.inf)
    ended_below = np.full(NUM_SIMULATED, -np.inf)  # for smaller effects, an earlier analysis decided differently
    counts = tuple(analysis.num_pairs for analysis in analyses)
    for analysis, (means, sds, weight, freedom) in zip(analyses, _simulated(counts, orders), strict=True):
        sd = spread * sds
        if floor is not None and analysis.num_pairs < floor_below:
            sd, freedom = np.maximum(sd, floor[0]), freedom + floor[1]
        noise = spread * means
        errors = np.divide(sd, math.sqrt(weight), out=sd)
        claim = t_quantile(analysis.level / 2, freedom) * errors
        np.maximum(claim, margin, out=claim)
        from_effect = claim - noise
        np.maximum(from_effect, ended_below, out=from_effect)
        np.minimum(threshold, from_effect, out=threshold)
        if analysis is analyses[-1]:
            break
        equivalent = np.multiply(errors, t_quantile(analysis.equivalence_level, freedom), out=errors)
        ended = np.subtract(margin, equivalent, out=equivalent)
        np.copyto(ended, np.negative(claim, out=claim), where=ended <= 0)
        ended -= noise
        np.maximum(ended_below, ended, out=ended_below)
    reached = np.searchsorted(np.sort(threshold), effects, side="right")
    return np.asarray(np.maximum(reached, 1) / NUM_SIMULATED)


@lru_cache(maxsize=16)
def _simulated(counts: tuple[int, ...], orders: tuple[str, ...]) -> list[tuple[Floats, Floats, float, int]]:
    """Simulate standard normal log ratios: means and sds at each analysis, with weight and degrees of freedom."""
    noise = np.random.RandomState(20240611).standard_normal((counts[-1], NUM_SIMULATED))
    return [fit(noise[:count], orders[:count]) for count in counts]
