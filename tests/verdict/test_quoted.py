"""The gain that is quoted is what is likely given that it was called better."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from benchmarks.verdict_scenarios import SCENARIOS, judge_tunings, make_tunings, summary
from scipy import stats

from flatout.verdict.analyses import PlannedAnalysis
from flatout.verdict.quoted import CERTAIN, Claim, quoted

STEPS = tuple(
    PlannedAnalysis(
        num_fresh=count, variance=1 / count + 1 / (count + 4), degrees_of_freedom=2 * count + 2, level=0.008
    )
    for count in (2, 3, 4, 6, 8, 12, 20)
)
MARGIN = math.log(1.01)


def claim(estimate: float, error: float, **changes: object) -> Claim:
    made = Claim(
        estimate=estimate,
        error=error,
        width=1.1,
        steps=STEPS,
        decided_at=2,
        margin=MARGIN,
        gives_up=True,
    )
    return msgspec.structs.replace(made, **changes)


def test_a_narrow_claim_is_corrected_and_stays_between_the_margin_and_the_estimate() -> None:
    corrected = quoted(claim(0.1, 0.03))
    assert MARGIN < corrected < 0.085
    assert quoted(claim(0.1, 0.03)) == corrected


def test_a_claim_far_from_its_threshold_is_hardly_corrected() -> None:
    assert quoted(claim(0.6, 0.03)) == pytest.approx(0.6, abs=0.003)
    just_uncertain = quoted(claim(MARGIN + 0.999 * CERTAIN * 0.001, 0.001))
    assert just_uncertain == pytest.approx(MARGIN + 0.999 * CERTAIN * 0.001, abs=1e-4)
    assert quoted(claim(MARGIN + 1.001 * CERTAIN * 0.001, 0.001)) == MARGIN + 1.001 * CERTAIN * 0.001
    assert quoted(claim(0.1, 0.0)) == 0.1


@pytest.mark.parametrize(("estimate", "error"), [(0.06, 0.012), (0.15, 0.03)])
def test_a_plan_of_one_analysis_is_corrected_as_by_numeric_integration(estimate: float, error: float) -> None:
    """The chance of a claim is an integral over the spread that the trials show; the prior's weight is 4 margins."""
    step = PlannedAnalysis(num_fresh=4, variance=0.375, degrees_of_freedom=10, level=0.008)
    only = claim(estimate, error, width=1.0, steps=(step,), decided_at=0, gives_up=False)
    scale = math.sqrt(step.variance)
    effects = np.linspace(MARGIN, estimate + 8 * error, 400)
    spreads = error / scale * np.geomspace(0.3, 4, 40)
    shown = np.sqrt(stats.chi2.ppf((np.arange(100) + 0.5) / 100, step.degrees_of_freedom) / step.degrees_of_freedom)
    weights = np.zeros(len(effects))
    for spread in spreads:
        thresholds = np.maximum(stats.t.ppf(1 - 0.004, 10) * shown * spread * scale, MARGIN)
        chances = stats.norm.sf((thresholds[:, None] - effects) / (spread * scale)).mean(axis=0)
        squares = ((estimate - effects) ** 2 + 10 * error**2) / step.variance
        likelihoods = np.exp(-squares / (2 * spread**2)) / spread**12
        weights += likelihoods * (1 + 4 * MARGIN / effects) / chances
    median = float(np.interp(0.5, (np.cumsum(weights) - weights / 2) / weights.sum(), effects))
    assert quoted(only) == pytest.approx(median, rel=0.02)  # the claim's chance is simulated 2,000 times


def test_a_loss_is_corrected_as_a_gain_is() -> None:
    assert quoted(claim(-0.1, 0.03)) == -quoted(claim(0.1, 0.03))


def test_a_plan_that_gives_up_claims_less_often_so_it_corrects_more() -> None:
    assert quoted(claim(0.1, 0.03)) < quoted(claim(0.1, 0.03, gives_up=False))


@pytest.mark.parametrize("are_all_good", [False, True])
def test_the_mean_of_quoted_gains_is_near_the_truth(are_all_good: bool) -> None:
    """10 % noise hides a gain of 10 % in most tunings, so those that find it were lucky."""
    tunings = make_tunings(SCENARIOS["white 10 %"], 1.1, tunings=300, are_all_good=are_all_good)
    judged = summary(tunings, judge_tunings(tunings, with_quotes=True))
    assert 0.2 < judged["power"] < 0.65
    assert judged["bias_points"]["mean"] > 4
    assert abs(judged["bias_points"]["quoted"]) < 2.5
    assert judged["rmse_points"]["quoted"] < judged["rmse_points"]["mean"]
