"""The paired t against scipy and against published values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flatout.verdict.paired import estimate
from flatout.verdict.student import noncentral_t_tail, normal_tail, t_quantile

# Hours of sleep gained with two drugs, ten patients (Student 1908, The probable error of a mean, Biometrika 6).
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
# Crossed less self-fertilised maize, eighths of an inch (Darwin 1876; Fisher 1935, The Design of Experiments, III).
MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_students_own_example() -> None:
    found = estimate(SLEEP, ["AB"] * 10)
    assert found.mean == pytest.approx(1.58)
    assert found.mean / found.standard_error == pytest.approx(4.0621, abs=5e-5)
    assert found.degrees_of_freedom == 9
    assert (found.mean - found.half_width(0.05), found.mean + found.half_width(0.05)) == pytest.approx(
        (0.7001142, 2.4598858), abs=1e-6
    )


def test_darwins_maize_as_fisher_judged_it() -> None:
    found = estimate(MAIZE, ["BA"] * 15)
    assert found.mean == pytest.approx(20.933, abs=5e-4)
    assert found.mean / found.standard_error == pytest.approx(2.148, abs=5e-4)
    assert found.degrees_of_freedom == 14


def test_pairs_in_one_order_give_scipys_paired_t() -> None:
    rng = np.random.default_rng(1)
    for count in (3, 6, 20):
        baseline, candidate = rng.normal(1, 0.1, count), rng.normal(0.97, 0.1, count)
        found = estimate((baseline - candidate).tolist(), ["AB"] * count)
        scipys = stats.ttest_rel(baseline, candidate)
        interval = scipys.confidence_interval(0.983)
        assert found.mean / found.standard_error == pytest.approx(scipys.statistic)
        assert found.mean - found.half_width(0.017) == pytest.approx(interval.low)
        assert found.mean + found.half_width(0.017) == pytest.approx(interval.high)


@pytest.mark.parametrize("orders", ["AB BA AB BA AB BA", "AB BA BA BA BA AB BA", "AB AB AB AB BA"])
def test_pairs_in_both_orders_give_the_intercept_of_scipys_line(orders: str) -> None:
    rng = np.random.default_rng(2)
    names = orders.split()
    y = rng.normal(0.02, 0.01, len(names))
    line = stats.linregress([1.0 if name == "BA" else -1.0 for name in names], y)
    found = estimate(y.tolist(), names)
    assert found.mean == pytest.approx(line.intercept)
    assert found.standard_error == pytest.approx(line.intercept_stderr)
    assert found.degrees_of_freedom == len(names) - 2


def test_four_balanced_pairs_give_scipys_t_whatever_the_drift_which_only_widens_the_interval() -> None:
    names = ["AB", "BA", "AB", "BA"]
    y = np.random.default_rng(4).normal(0.02, 0.01, 4)
    found = estimate(y.tolist(), names)
    scipys = stats.ttest_1samp(y, 0)
    assert found.mean / found.standard_error == pytest.approx(scipys.statistic)
    assert found.degrees_of_freedom == scipys.df == 3
    drifting = estimate((y + np.array([-0.05, 0.05, -0.05, 0.05])).tolist(), names)
    assert drifting.mean == pytest.approx(found.mean)
    assert drifting.standard_error > 2 * found.standard_error


@pytest.mark.parametrize("orders", ["AB BA AB BA AB BA", "AB BA BA AB BA"])
def test_a_drift_is_taken_out_whatever_its_size(orders: str) -> None:
    names = orders.split()
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.01, len(names))
    signs = np.array([1.0 if name == "BA" else -1.0 for name in names])
    still = estimate(noise.tolist(), names)
    drifting = estimate((noise + 0.5 * signs).tolist(), names)
    assert drifting.mean == pytest.approx(still.mean)
    assert drifting.standard_error == pytest.approx(still.standard_error)


@pytest.mark.parametrize(("tail", "freedom", "published"), [(0.025, 4, 2.776), (0.005, 9, 3.250), (0.0005, 2, 31.599)])
def test_quantiles_of_the_tables(tail: float, freedom: int, published: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(published, abs=5e-4)


def test_tails_agree_with_scipy_and_end_in_0_or_1() -> None:
    assert noncentral_t_tail(2.5, 6, 3.0) == pytest.approx(stats.nct.sf(2.5, 6, 3.0))
    assert noncentral_t_tail(3.0, 4, 1e4) == 1
    assert normal_tail(1.5) == pytest.approx(stats.norm.sf(1.5))
