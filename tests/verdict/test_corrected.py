"""The gain that a verdict quotes: against known effects, and its chance of a claim against other ways to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.verdict.trials import noisy_pairs, pairs, swapped, trial

from flatout.records.verdict import NoiseFloor, Verdict
from flatout.verdict.corrected import _chance, corrected
from flatout.verdict.interim import DEFAULT_INTERIM, InterimAnalysis
from flatout.verdict.judge import judge
from flatout.verdict.noise import noise_floor
from flatout.verdict.paired import Estimate
from flatout.verdict.student import noncentral_t_tail, t_quantile

ALTERNATING = ("AB", "BA") * 10


def floor_of(rng: np.random.Generator, sd: float) -> NoiseFloor:
    return noise_floor([trial(i, step_s=[float(np.exp(rng.normal(0, sd / 2**0.5)))]) for i in range(3)])


def verdicts_at(effect: float, sd: float, count: int, key: int) -> list[Verdict]:
    found = []
    for tuning in range(count):
        rng = np.random.default_rng([key, tuning])
        found.append(judge(noisy_pairs(rng, 20, effect=effect, sd=sd), floor=floor_of(rng, sd)))
    return found


def errors(verdicts: list[Verdict], effect: float) -> tuple[float, float, float, float]:
    """Bias and root mean square error of the plain mean and of what is quoted, of those that were called better."""
    better = [verdict for verdict in verdicts if verdict.verdict == "better"]
    mean = np.log([verdict.mean_speedup or math.nan for verdict in better]) - math.log1p(effect)
    quoted = np.log([verdict.speedup or math.nan for verdict in better]) - math.log1p(effect)
    return mean.mean(), quoted.mean(), (mean**2).mean() ** 0.5, (quoted**2).mean() ** 0.5


def test_what_small_gains_are_quoted_too_high_is_about_halved_and_the_error_is_smaller() -> None:
    mean_bias, bias, mean_error, error = errors(verdicts_at(0.03, 0.0573, 500, 1), 0.03)
    assert mean_bias > 0.014  # or there would be nothing to take out
    assert bias < 0.6 * mean_bias
    assert error < 0.9 * mean_error


def test_a_gain_that_most_tunings_find_is_quoted_without_bias() -> None:
    mean_bias, bias, mean_error, error = errors(verdicts_at(0.05, 0.0573, 200, 2), 0.05)
    assert mean_bias > 0.006
    assert abs(bias) < 0.004
    assert error < 1.05 * mean_error


def test_a_large_gain_is_the_plain_mean_to_within_a_small_part_of_its_interval() -> None:
    for effect, sd in ((0.3, 0.017), (1.0, 0.057), (2.0, 0.17)):
        for verdict in verdicts_at(effect, sd, 15, 3):
            assert verdict.interval is not None and verdict.speedup and verdict.mean_speedup
            half_width = math.log(verdict.interval[1] / verdict.interval[0]) / 2
            assert abs(math.log(verdict.mean_speedup / verdict.speedup)) < 0.02 * half_width


def test_it_is_between_the_least_effect_and_the_mean_and_within_the_interval() -> None:
    seen = 0
    for effect, sd, key in ((0.012, 0.01, 4), (0.02, 0.03, 5), (0.04, 0.06, 6), (0.015, 0.002, 7)):
        for verdict in verdicts_at(effect, sd, 40, key):
            if verdict.verdict == "better":
                assert verdict.interval is not None and verdict.speedup and verdict.mean_speedup
                assert 1.01 <= verdict.speedup <= verdict.mean_speedup
                assert verdict.interval[0] <= verdict.speedup
                seen += 1
    assert seen > 50


def test_what_is_not_claimed_is_not_corrected() -> None:
    rng = np.random.default_rng(9)
    for found in (
        judge(noisy_pairs(rng, 20, sd=0.06)),
        judge(noisy_pairs(rng, 20, sd=0.005)),
        judge(noisy_pairs(rng, 2)),
        judge([]),
    ):
        assert found.verdict in ("undecided", "equivalent")
        assert found.speedup == found.mean_speedup


def test_worse_is_corrected_as_better_is() -> None:
    made = noisy_pairs(np.random.default_rng(11), 20, effect=0.03, sd=0.02)
    better, worse = judge(made), judge(swapped(made))
    assert (better.verdict, worse.verdict) == ("better", "worse")
    assert better.speedup and worse.speedup and better.mean_speedup and better.speedup < better.mean_speedup
    assert 1 / worse.speedup == pytest.approx(better.speedup)


def test_more_pairs_behind_the_verdict_do_not_change_it() -> None:
    made = noisy_pairs(np.random.default_rng(12), 20, effect=0.04, sd=0.02)
    found = judge(made)
    assert found.verdict == "better" and found.num_pairs < 20
    assert judge(made[: found.num_pairs]) == found
    assert judge(made[: found.num_pairs], is_last=True) == found


def test_pairs_that_a_budget_ended_and_orders_that_are_not_balanced_are_corrected() -> None:
    ratios = [0.05, 0.03, 0.045, 0.031, 0.052, 0.029, 0.044]
    for orders in (None, ["AB"] * 7, ["AB", "BA", "AB", "AB", "AB", "BA", "AB"]):
        found = judge(pairs(ratios, orders=orders), is_last=True)
        assert found.verdict == "better" and found.speedup and found.mean_speedup
        assert 1.01 < found.speedup <= found.mean_speedup


def test_pairs_without_any_spread_are_quoted_as_they_are() -> None:
    found = judge(pairs([math.log(1.5)] * 6))
    assert found.speedup == found.mean_speedup == pytest.approx(1.5)


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_the_chance_of_a_claim_at_one_look_is_that_of_the_noncentral_t(shift: float) -> None:
    look = InterimAnalysis(num_pairs=8, level=0.05, equivalence_level=1e-9)
    effects = np.array([shift / 8**0.5])
    (chance,) = _chance(1.0, effects, [look], ALTERNATING[:8], 1e-9, None, 6)
    assert chance == pytest.approx(noncentral_t_tail(t_quantile(0.025, 6), 6, shift), abs=0.015)


@pytest.mark.parametrize("effect", [0.02, 0.03, 0.05])
def test_the_chance_of_a_claim_is_how_often_judge_makes_it(effect: float) -> None:
    floor = floor_of(np.random.default_rng(13), 0.04)
    claims = sum(
        judge(noisy_pairs(np.random.default_rng([14, i]), 20, effect=effect, sd=0.04), floor=floor).verdict == "better"
        for i in range(150)
    )
    spread = floor.pair_sd(1), floor.degrees_of_freedom
    effects = np.array([math.log1p(effect)])
    (chance,) = _chance(0.04, effects, DEFAULT_INTERIM.analyses, ALTERNATING, math.log(1.01), spread, 6)
    assert claims / 150 == pytest.approx(chance, abs=3 * 0.5 / 150**0.5)


def test_an_estimate_that_only_just_made_the_claim_gives_up_most() -> None:
    """By any account of the winner's curse: near the threshold the claim itself says little."""
    looks = [InterimAnalysis(num_pairs=20, level=0.008, equivalence_level=0.023)]
    kept = []
    for mean in (0.039, 0.045, 0.06, 0.1):
        found = Estimate(mean=mean, sd=0.057, weight=20.0, degrees_of_freedom=18)
        quoted = corrected(found, looks, ALTERNATING, min_effect=0.01, floor=None, floor_below=6)
        kept.append((mean - quoted) / mean)
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 0.25
    assert kept[-1] < 0.02
