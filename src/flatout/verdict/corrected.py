"""An estimate that was called better -> the gain to quote: without what choosing the lucky ones puts on top.

Pairs stop at the first look that decides, and only what is called better is quoted. Where few such gains are found at
all, their mean is well above the truth (the winner's curse). What takes it out is the likelihood *given* the claim:
that of mean and spread over the chance that any look makes the claim (Zhong and Prentice 2008, Biostatistics 9:621;
Ghosh, Zou and Wright 2008, Am. J. Hum. Genet. 82:1064, for chosen genes). Quoted is the median of the effect by it,
for effects from the least one that counts on, small ones likelier beforehand. Where the claim was certain anyhow and
the effect is large, that is the plain mean.

The chance comes from simulated normal log ratios, judged by the rules of `judge`: same looks, levels, orders, noise
floor and least effect. Each of them is called better for effects above a threshold of its own, so that one pass gives
the chance for all effects. The seed is fixed and the generator frozen (NEP 19): same data, same number. Left out are
the rule for spikes, and that a tuning may give up between looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flatout.verdict.looks import Look
from flatout.verdict.paired import Estimate, fit
from flatout.verdict.student import t_quantile

Floats = NDArray[np.float64]

NUM_SIMULATED = 4000
NUM_SPREADS, NUM_EFFECTS = 16, 200
# Weight of an effect beforehand: 1 + this times the least effect over it. Small gains are the commoner ones; of
# large ones all weigh alike. Chosen by simulation, see `benchmarks/README.md`.
SMALL_WEIGHT = 4.0
# So many standard errors above the least effect, a claim was certain by any spread that the data allow.
CERTAIN = 40.0


def corrected(
    found: Estimate,
    looks: Sequence[Look],
    orders: Sequence[str],
    *,
    min_effect: float,
    floor: tuple[float, int] | None,
    floor_below: int,
) -> float:
    """The log ratio to quote of an estimate that was called better (above 0) or worse (below 0).

    `looks` are all that it had and would have had; `orders` those of the pairs that were run, behind which more would
    have gone on alternating. `floor` is the noise floor's spread of a pair with its degrees of freedom, which looks
    at fewer than `floor_below` pairs use. The result is between the least effect and the plain mean.
    """
    mean, error, margin = abs(found.mean), found.standard_error, math.log1p(min_effect)
    if error == 0 or mean - margin > CERTAIN * error:
        return found.mean
    planned = _as_planned(orders, looks[-1].num_pairs)
    width = 1 / math.sqrt(found.degrees_of_freedom)  # about that of the spread's logarithm, times 1.4
    spreads = found.sd * np.geomspace(math.exp(-2.5 * width), math.exp(4 * width), NUM_SPREADS)
    effects = np.linspace(margin, mean + 8 * error, NUM_EFFECTS)
    chances = [_chance(spread, effects, looks, planned, margin, floor, floor_below) for spread in spreads]
    logs = _log_likelihood(found, mean, margin, spreads[:, None], effects[None, :]) - np.log(chances)
    weights = np.exp(logs - logs.max()).sum(axis=0)
    below = np.cumsum(weights) - weights / 2
    median = float(np.interp(weights.sum() / 2, below, effects))
    return math.copysign(min(median, mean), found.mean)


def _as_planned(orders: Sequence[str], num_pairs: int) -> tuple[str, ...]:
    found = list(orders)
    while len(found) < num_pairs:
        found.append("BA" if found[-1] == "AB" else "AB")
    return tuple(found)


def _log_likelihood(found: Estimate, mean: float, margin: float, spread: Floats, effect: Floats) -> Floats:
    """Of mean and sd, with the prior, on a grid that is even in effects and in the logarithms of spreads."""
    freedom = found.degrees_of_freedom
    residuals = found.weight * (mean - effect) ** 2 + freedom * found.sd**2
    # A mean has 1 / spread, an sd 1 / spread^freedom, Jeffreys' prior 1 / spread^2; a step of the grid is as wide as
    # the spread.
    logs = -residuals / (2 * spread**2) - (freedom + 2) * np.log(spread) + np.log1p(SMALL_WEIGHT * margin / effect)
    return np.asarray(logs)


def _chance(
    spread: float,
    effects: Floats,
    looks: Sequence[Look],
    orders: tuple[str, ...],
    margin: float,
    floor: tuple[float, int] | None,
    floor_below: int,
) -> Floats:
    """Of a claim of better at any look, for each effect."""
    threshold = np.full(NUM_SIMULATED, np.inf)
    ended_below = np.full(NUM_SIMULATED, -np.inf)  # a smaller effect was decided otherwise before
    counts = tuple(look.num_pairs for look in looks)
    for look, (means, sds, weight, freedom) in zip(looks, _simulated(counts, orders), strict=True):
        sd = spread * sds
        if floor is not None and look.num_pairs < floor_below:
            sd, freedom = np.maximum(sd, floor[0]), freedom + floor[1]
        errors = sd / math.sqrt(weight)
        claim = np.maximum(t_quantile(look.level / 2, freedom) * errors, margin)
        threshold = np.minimum(threshold, np.maximum(claim - spread * means, ended_below))
        equivalent = margin - t_quantile(look.equivalence_level, freedom) * errors
        ended = np.where(equivalent > 0, equivalent, -claim) - spread * means
        ended_below = np.maximum(ended_below, ended)
    reached = np.searchsorted(np.sort(threshold), effects, side="right")
    return np.asarray(np.maximum(reached, 1) / NUM_SIMULATED)


@lru_cache(maxsize=16)
def _simulated(counts: tuple[int, ...], orders: tuple[str, ...]) -> list[tuple[Floats, Floats, float, int]]:
    """Means and sds of standard normal log ratios at each look, with the weight and the degrees of freedom."""
    noise = np.random.RandomState(20240611).standard_normal((counts[-1], NUM_SIMULATED))
    return [fit(noise[:count], orders[:count]) for count in counts]
