"""Correct the gain of a candidate that was called better for selection bias, and return the gain to quote.

Trials stop at the first analysis that decides, and only gains that are called better are quoted. If few gains are
found, their mean is well above the truth (the winner's curse). The likelihood *given* the claim removes this bias: the
likelihood of estimate and spread, divided by the chance that any analysis makes the claim (Zhong and Prentice 2008,
Biostatistics 9:621; Ghosh, Zou and Wright 2008, Am. J. Hum. Genet. 82:1064, for selected genes). The quoted gain is the
median of the effect under this likelihood, for effects of at least the smallest one that counts, with a prior that
favours small ones. If the claim was certain anyway and the effect is large, that is the plain estimate.

The chance is computed from simulated estimates at the analyses that were made and those that would have followed, with
their variances, levels and the rule that gives a candidate up. The seed is fixed and the generator frozen (NEP 19), so
the same trials give the same number. The choice among several candidates is not corrected: where they are equally good,
the trial that chose one of them was lucky, and the quoted gain is up to a third of its standard error too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from flatout.verdict.analyses import Fitted, PlannedAnalysis, plan_steps, worth_more
from flatout.verdict.arrangement import Arrangement
from flatout.verdict.effect import Floats
from flatout.verdict.student import t_quantile

NUM_SIMULATED = 2000
NUM_SPREADS, NUM_EFFECTS = 12, 200
# Prior weight of an effect: 1 + this times the smallest effect over it. Small gains are more common; large gains all
# have about the same weight. Chosen by simulation, see `benchmarks/README.md`.
SMALL_WEIGHT = 4.0
# Number of standard errors above the smallest effect at which a claim was certain for any spread that the trials allow.
CERTAIN = 40.0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate that was called better or worse, and the plan of analyses that called it so."""

    estimate: float  # log speedup; above 0 if it was called better
    error: float
    width: float  # of the interval that was used, over that of a single model with this error
    steps: tuple[PlannedAnalysis, ...]  # all analyses that were made or planned
    decided_at: int  # place in `steps`
    margin: float  # log of the smallest speedup that counts
    gives_up: bool  # a candidate that is unlikely to be called better is given up


def claim_of(
    analyses: Sequence[Fitted],
    arrangement: Arrangement,
    *,
    num_run: int,
    num_screened: int,
    min_effect: float,
    tuning: int = 0,
) -> Claim:
    """Return the claim of the last analysis, for one of its tunings.

    `arrangement` has all trials up to then. They include those of the `num_run` fresh trials that count.
    """
    last = analyses[-1]
    estimate, error = float(last.effect.estimate[tuning]), float(last.effect.error[tuning])
    model = int(np.argmax(last.effect.probabilities[:, tuning]))
    steps = plan_steps(analyses, arrangement, num_run=num_run, num_screened=num_screened, model=model)
    decided_at = len(analyses) - 1
    reach = estimate - float(last.low[tuning]) if estimate > 0 else float(last.high[tuning]) - estimate
    level, freedom = steps[decided_at].level, steps[decided_at].degrees_of_freedom
    return Claim(
        estimate=estimate,
        error=error,
        width=reach / (t_quantile(level / 2, freedom) * error),
        steps=steps,
        decided_at=decided_at,
        margin=math.log1p(min_effect),
        gives_up=estimate > 0,
    )


def quoted(claim: Claim) -> float:
    """Return the log speedup to quote, between the smallest effect that counts and the plain estimate."""
    mean, error = abs(claim.estimate), claim.error
    if error == 0 or mean - claim.margin > CERTAIN * error:
        return claim.estimate
    step = claim.steps[claim.decided_at]
    sigma = error / math.sqrt(step.variance)
    width = 1 / math.sqrt(step.degrees_of_freedom)  # about 1.4 times the width of the spread's logarithm
    spreads = sigma * np.geomspace(math.exp(-2.5 * width), math.exp(4 * width), NUM_SPREADS)
    effects = np.linspace(claim.margin, mean + 8 * error, NUM_EFFECTS)
    chances = np.array([_chance(claim, spread, effects) for spread in spreads])
    logs = _log_likelihood(claim, mean, sigma, spreads[:, None], effects[None, :]) - np.log(chances)
    weights = np.exp(logs - logs.max()).sum(axis=0)
    below = np.cumsum(weights) - weights / 2
    median = float(np.interp(weights.sum() / 2, below, effects))
    return math.copysign(min(median, mean), claim.estimate)


def _log_likelihood(claim: Claim, mean: float, sigma: float, spread: Floats, effect: Floats) -> Floats:
    """Return the log likelihood of estimate and spread, with the prior, on a grid even in effects and log spreads."""
    step = claim.steps[claim.decided_at]
    residuals = (mean - effect) ** 2 / step.variance + step.degrees_of_freedom * sigma**2
    # The estimate contributes 1 / spread, its spread 1 / spread^freedom, Jeffreys' prior 1 / spread^2. A step of the
    # grid is as wide as the spread.
    logs = -residuals / (2 * spread**2) - (step.degrees_of_freedom + 2) * np.log(spread)
    logs = logs + np.log1p(SMALL_WEIGHT * claim.margin / effect)
    return np.asarray(logs)


def _chance(claim: Claim, spread: float, effects: Floats) -> Floats:
    """Return the chance that any analysis makes the claim, for each effect."""
    noises, spread_ratios = _simulated(tuple((step.variance, step.degrees_of_freedom) for step in claim.steps))
    threshold = np.full(NUM_SIMULATED, np.inf)  # the claim is made for effects from here
    ended_below = np.full(NUM_SIMULATED, -np.inf)  # for smaller effects, the trials ended before
    last = claim.steps[-1]
    for place, step in enumerate(claim.steps):
        noise, sigma = spread * noises[place], spread * spread_ratios[place]
        error = sigma * math.sqrt(step.variance)
        half = claim.width * t_quantile(step.level / 2, step.degrees_of_freedom) * error
        from_effect = np.maximum(np.maximum(half, claim.margin) - noise, ended_below)
        np.minimum(threshold, from_effect, out=threshold)
        if claim.gives_up and step is not last:
            last_half = t_quantile(last.level / 2, last.degrees_of_freedom) * sigma * math.sqrt(last.variance)
            change = sigma * math.sqrt(max(step.variance - last.variance, 0.0))
            reach = t_quantile(worth_more(step.num_fresh), step.degrees_of_freedom) * change
            np.maximum(ended_below, np.maximum(last_half, claim.margin) - reach - noise, out=ended_below)
    reached = np.searchsorted(np.sort(threshold), effects, side="right")
    return np.asarray(np.maximum(reached, 1) / NUM_SIMULATED)


@lru_cache(maxsize=32)
def _simulated(steps: tuple[tuple[float, int], ...]) -> tuple[list[Floats], list[Floats]]:
    """Simulate the estimate's noise and the estimated over the true spread at each analysis, for a spread of 1.

    Estimates by more and more of the same trials: each over its variance is the last one plus independent noise.
    """
    generator = np.random.RandomState(20240611)
    score, information = np.zeros(NUM_SIMULATED), 0.0
    squares, freedom = np.zeros(NUM_SIMULATED), 0
    noises, ratios = [], []
    for variance, degrees_of_freedom in steps:
        gained = max(1 / variance - information, 0.0)
        score = score + math.sqrt(gained) * generator.standard_normal(NUM_SIMULATED)
        information += gained
        more = max(degrees_of_freedom - freedom, 0)
        squares = squares + (generator.standard_normal((more, NUM_SIMULATED)) ** 2).sum(axis=0)
        freedom += more
        noises.append(score / information)
        ratios.append(np.sqrt(squares / freedom))
    return noises, ratios
