"""The effect is fitted by least squares under several models of the noise, held here to another way of computing it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg, stats

from flatout.verdict.arrangement import Arrangement, planned
from flatout.verdict.effect import as_speedup, fit_effect
from flatout.verdict.shared_error import SharedError

Floats = NDArray[np.float64]

ORDER = "AABABBAAB"
LOGS = np.array([0.03, -0.02, 0.31, 0.01, 0.25, 0.36, -0.01, 0.02, 0.28])
# Variance of the walk per trial; the candidate's variance and its prior; delay of the first trial, of the first trials,
# and in how many trials the latter falls to 1 / e.
WALKS = (0.0, 0.3)
RATIOS = {1.0: 1.0, 9.0: 0.3, 36.0: 0.1}
DELAYS = ((0.0, 2.0, 1.5), (30.0, 2.0, 1.5), (0.0, 30.0, 1.5), (0.0, 30.0, 4.0))


def covariance(trials: list[int], blocks: list[int], walk: float, ratio: float, delays: tuple[float, ...]) -> Floats:
    """The covariance of the noise in squared sigmas, entry by entry."""
    first, decaying, fall = delays
    result = np.zeros((len(trials), len(trials)))
    for i, k in itertools.product(range(len(trials)), repeat=2):
        s, t = trials[i] - trials[0], trials[k] - trials[0]
        result[i, k] = 0.2**2 * s * t + walk * min(s, t)
        if blocks[i] == blocks[k]:
            start = trials[blocks.index(blocks[i])] - trials[0]
            result[i, k] += decaying**2 * math.exp(-(s + t - 2 * start) / fall)
        if i == k:
            result[i, k] += (ratio if ORDER[i] == "B" else 1.0) + first**2 * (blocks.index(blocks[i]) == i)
    return result


def expected(
    trials: list[int], blocks: list[int], logs: Floats = LOGS, order: str = ORDER
) -> list[tuple[float, float, float, float]]:
    """Each model's effect, its error, and its restricted log likelihood with and without the prior.

    The restricted likelihood is that of contrasts that no parameter changes, with sigma at its best value.
    """
    columns = [[float(block == number) for block in blocks] for number in sorted(set(blocks))]
    design = np.array([*columns, [-float(arm == "B") for arm in order]]).T
    freedom = len(logs) - design.shape[1]
    contrasts = linalg.null_space(design.T)
    rows = []
    for walk, (ratio, prior), delays in itertools.product(WALKS, RATIOS.items(), DELAYS):
        v = covariance(trials, blocks, walk, ratio, delays)
        root = linalg.cholesky(v, lower=True)
        x, y = linalg.solve_triangular(root, design, lower=True), linalg.solve_triangular(root, logs, lower=True)
        solution, *_ = linalg.lstsq(x, y)
        residuals = y - x @ solution
        squares = float(residuals @ residuals) + 0.01**2
        error = math.sqrt(squares / freedom * linalg.inv(x.T @ x)[-1, -1])
        of_contrasts = contrasts.T @ v @ contrasts
        likelihood = -0.5 * np.linalg.slogdet(of_contrasts)[1] - 0.5 * freedom * math.log(squares)
        rows.append((float(solution[-1]), error, likelihood, likelihood + math.log(prior)))
    return rows


@pytest.mark.parametrize("blocks", [[0] * 9, [0, 0, 0, 0, 1, 1, 1, 1, 1]])
@pytest.mark.parametrize("trials", [list(range(9)), [3, 4, 8, 9, 10, 11, 15, 16, 20]])
def test_estimate_interval_and_probability_are_those_of_the_models(trials: list[int], blocks: list[int]) -> None:
    arrangement = Arrangement(
        positions=tuple(trials),
        is_candidate=tuple(arm == "B" for arm in ORDER),
        is_fresh=tuple(arm == "B" for arm in ORDER),
        blocks=tuple(blocks),
    )
    effect = fit_effect(LOGS[None, :], arrangement)
    assert effect is not None
    rows = expected(trials, blocks)
    freedom = 9 - 1 - len(set(blocks))
    assert effect.degrees_of_freedom == freedom
    best, best_with_prior = max(row[2] for row in rows), max(row[3] for row in rows)
    weights = np.array([math.exp(row[3] - best_with_prior) for row in rows])
    weights /= weights.sum()
    assert effect.estimate[0] == pytest.approx(sum(w * row[0] for w, row in zip(weights, rows, strict=True)))
    assert effect.error[0] == pytest.approx(sum(w * row[1] for w, row in zip(weights, rows, strict=True)))
    above = [stats.t.cdf((row[0] + 0.2) / row[1], freedom) for row in rows]
    assert effect.probability_above(-0.2)[0] == pytest.approx(float(weights @ np.array(above)))
    for level in (0.001, 0.1):
        halves = [stats.t.ppf(1 - level / 2, freedom) * row[1] for row in rows]
        plausible = [(row[0], half) for row, half in zip(rows, halves, strict=True) if row[2] - best >= math.log(0.3)]
        assert 1 < len(plausible) < len(rows)
        low, high = effect.interval(level)
        assert low[0] == pytest.approx(min(mean - half for mean, half in plausible))
        assert high[0] == pytest.approx(max(mean + half for mean, half in plausible))


def test_a_model_is_plausible_from_three_tenths_of_the_best_likelihood() -> None:
    """Searches noise for which one model is on either side of the threshold."""
    arrangement = planned("AAAABBAB")
    rng = np.random.default_rng(2)
    effect = fit_effect(rng.normal(0, 0.05, (400, 8)), arrangement)
    assert effect is not None
    low, high = effect.interval(0.05)
    half = stats.t.ppf(0.975, effect.degrees_of_freedom) * effect.errors
    for threshold, agrees in ((0.3, True), (0.25, False), (0.35, False)):
        inside = effect.likelihoods >= threshold
        lowest = np.where(inside, effect.means - half, np.inf).min(axis=0)
        highest = np.where(inside, effect.means + half, -np.inf).max(axis=0)
        assert (np.allclose(lowest, low) and np.allclose(highest, high)) is agrees


def test_an_arm_alone_in_each_block_gives_no_effect() -> None:
    def arrangement(order: str, blocks: tuple[int, ...]) -> Arrangement:
        is_candidate = tuple(arm == "B" for arm in order)
        return Arrangement(
            positions=tuple(range(len(order))), is_candidate=is_candidate, is_fresh=is_candidate, blocks=blocks
        )

    logs = np.zeros((1, 4))
    assert fit_effect(logs, arrangement("AABB", (0, 0, 1, 1))) is None
    assert fit_effect(logs, arrangement("AABB", (0, 0, 0, 1))) is not None
    assert fit_effect(np.zeros((1, 2)), arrangement("AB", (0, 0))) is None
    assert fit_effect(np.zeros((1, 3)), arrangement("ABA", (0, 0, 0))) is not None
    assert fit_effect(np.zeros((1, 3)), arrangement("AAA", (0, 0, 0))) is None


def test_an_error_that_the_trials_share_widens_the_interval_and_lowers_the_certainty() -> None:
    arrangement = planned(ORDER)
    alone = fit_effect(LOGS[None, :], arrangement)
    shared = fit_effect(LOGS[None, :], arrangement, shared=SharedError(sd=0.1, degrees_of_freedom=2))
    assert alone is not None
    assert shared is not None
    assert shared.estimate[0] == alone.estimate[0]
    one = np.argmax(alone.likelihoods[:, 0])
    assert shared.error[0] > alone.error[0]
    half = stats.t.ppf(0.975, 7) * alone.errors[one, 0]
    wider = math.hypot(half, stats.t.ppf(0.975, 2) * 0.1)
    assert shared.interval(0.05)[0][0] <= alone.means[one, 0] - wider
    assert shared.interval(0.05)[0][0] == pytest.approx(alone.interval(0.05)[0][0] - (wider - half), rel=0.3)
    assert shared.probability_above(-0.5)[0] < alone.probability_above(-0.5)[0]


def test_an_interval_is_never_wider_than_the_largest_spread_makes_it() -> None:
    """With 35 % noise in each of 2 + 3 trials, or what the models add to it for drift, walk and warming."""
    logs = np.array([[0.0, 0.4, 0.2, -1.0, -0.7]])
    effect = fit_effect(logs, planned("AAABB"))
    assert effect is not None
    alike = [place for place in range(24) if (place // 4) % 3 == 0]  # models of a candidate as noisy as the baseline
    assert (effect.most_errors[:, 0] < np.inf).all()
    variances = (effect.most_errors[:, 0] / 0.35) ** 2
    assert min(variances) == pytest.approx(variances[0])
    assert 1 / 2 + 1 / 3 < variances[0] < 2 * (1 / 2 + 1 / 3)
    assert len({round(float(effect.most_errors[place, 0]), 9) for place in alike}) == 8
    low, high = effect.interval(0.01)
    reach = stats.norm.ppf(0.995) * effect.most_errors[:, 0]
    assert low[0] >= (effect.means[:, 0] - reach).min() - 1e-12
    assert high[0] <= (effect.means[:, 0] + reach).max() + 1e-12
    # Trials that differ by more than that show that the machine is worse.
    wild = fit_effect(np.array([[0.0, 2.0, 0.2, -3.0, -0.7]]), planned("AAABB"))
    assert wild is not None
    assert np.isinf(wild.most_errors[0, 0])
    assert wild.interval(0.01)[0][0] < (wild.means[:, 0] - reach).min()
    quiet = fit_effect(logs / 100, planned("AAABB"))
    assert quiet is not None
    assert quiet.interval(0.01)[1][0] - quiet.interval(0.01)[0][0] < (high[0] - low[0]) / 10


@pytest.mark.parametrize(("shift", "side"), [(0.2, 1), (-0.2, 0)])
def test_what_something_else_may_have_moved_widens_the_interval_by_its_weight(shift: float, side: int) -> None:
    """What slows a trial of the candidate hides a part of the gain; what speeds one up shows too much of it."""
    arrangement = planned("AAAABB")
    logs = np.array([[0.0, 0.02, -0.01, 0.01, -0.3, -0.31]])
    alone = fit_effect(logs, arrangement)
    shifted = fit_effect(logs, arrangement, shifts=(0.0, 0.0, 0.0, 0.0, 0.0, shift))
    assert alone is not None
    assert shifted is not None
    # The trial is one of two of its arm: half of its shift moves the estimate.
    moved = [
        abs(with_shift[0] - without[0])
        for with_shift, without in zip(shifted.interval(0.01), alone.interval(0.01), strict=True)
    ]
    assert moved[side] == pytest.approx(0.1, abs=0.02)
    assert moved[1 - side] == 0.0
    assert shifted.error[0] > alone.error[0]
    assert shifted.estimate[0] == alone.estimate[0]


def test_a_spread_below_one_percent_is_not_believed() -> None:
    effect = fit_effect(np.array([[0.0, 0.0, 0.0, 0.0, -0.1, -0.1]]), planned("AAAABB"))
    assert effect is not None
    assert effect.error[0] > 0.003
    assert as_speedup(effect.estimate[0]) == pytest.approx(math.exp(0.1), rel=1e-6)
    assert as_speedup(1e6) == math.exp(700)
