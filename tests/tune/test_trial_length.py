"""How long a trial should be, from what is known of the job: each bound on both of its sides."""

from __future__ import annotations

import math

import pytest

from flatout.records.stop_rule import StopRule
from flatout.tune.trial_length import KnownTimes, trial_length


def rule(
    effect: float = 0.3, budget_left_s: float = 1e4, reference_step_s: float | None = None, **job: float
) -> StopRule:
    times = KnownTimes(**({"start_s": 20.0} | job))  # type: ignore[arg-type]
    return trial_length(times, effect=effect, budget_left_s=budget_left_s, reference_step_s=reference_step_s)


@pytest.mark.parametrize(("start_s", "min_s"), [(3.0, 0.5), (4.0, 0.6), (20.0, 3.0), (66.0, 9.9), (70.0, 10.0)])
def test_a_trial_measures_for_a_share_of_its_start_within_bounds(start_s: float, min_s: float) -> None:
    assert rule(start_s=start_s).min_s == pytest.approx(min_s)


@pytest.mark.parametrize(("start_s", "max_s"), [(5.0, 30.0), (9.0, 30.0), (11.0, 33.0), (20.0, 60.0), (70.0, 210.0)])
def test_a_trial_measures_for_three_times_its_start_at_most(start_s: float, max_s: float) -> None:
    assert rule(start_s=start_s).max_s == pytest.approx(max_s)


@pytest.mark.parametrize(
    ("budget_left_s", "max_s"), [(490.0, 60.0), (450.0, 55.0), (240.0, 20.0), (100.0, 3.0), (0.0, 3.0)]
)
def test_the_budget_allows_six_trials(budget_left_s: float, max_s: float) -> None:
    """The least seconds are measured even where the budget does not: a shorter trial would be wasted altogether."""
    assert rule(budget_left_s=budget_left_s).max_s == pytest.approx(max_s)


def test_a_budget_for_fewer_trials_allows_longer_ones() -> None:
    times = KnownTimes(start_s=20.0)
    assert trial_length(times, effect=0.3, budget_left_s=150.0, num_trials=3).max_s == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("step_s", "min_steps"), [(None, 5), (0.0, 5), (0.005, 20), (0.15, 20), (0.16, 18), (0.5, 6), (0.7, 5), (30.0, 5)]
)
def test_slow_steps_are_few(step_s: float | None, min_steps: int) -> None:
    """Three seconds are measured at least: twenty steps where they fit, and five where they do not."""
    assert rule(step_s=step_s).min_steps == min_steps  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("period", "min_steps"),
    [
        (8, 20),
        (40, 80),  # two periods take 8 s, less than half the start
        (50, 100),
        (51, 51),  # and here more than half
        (600, 600),  # the longest that is measured is a minute
        (601, 20),
    ],
)
def test_a_trial_holds_whole_periods_where_they_fit(period: int, min_steps: int) -> None:
    made = rule(step_s=0.1, period=period)
    assert (made.min_steps, made.period) == (min_steps, period)


def test_a_period_longer_than_the_usual_most_steps_fits_too() -> None:
    assert rule(step_s=0.001, period=30_000).max_steps == 30_000
    assert rule(step_s=0.001, period=10_000).max_steps == 20_000


@pytest.mark.parametrize(
    ("effect", "error"),
    [(0.005, 0.002), (0.01, 0.002), (0.02, 0.004), (0.3, 0.06), (0.5, 0.1), (1.0, 0.1), (60.0, 0.1)],
)
def test_a_large_effect_needs_no_precision(effect: float, error: float) -> None:
    assert rule(effect=effect).relative_error == pytest.approx(error)


def test_the_error_that_a_long_trial_may_have_follows_the_noise_between_runs() -> None:
    assert rule(run_sd=0.02).error_per_root_s == pytest.approx(0.02 / math.sqrt(20.0))
    assert rule().error_per_root_s == pytest.approx(0.01 / math.sqrt(20.0))  # 1 % until it is known
    assert rule(start_s=0.1, run_sd=0.02).error_per_root_s == pytest.approx(0.02 / math.sqrt(0.5))


def test_only_a_candidate_with_a_reference_is_abandoned_or_accepted() -> None:
    baseline = rule(run_sd=0.02)
    assert (baseline.abandon_step_s, baseline.accept_step_s) == (None, None)
    candidate = rule(run_sd=0.02, reference_step_s=2.0)
    assert candidate.abandon_step_s == pytest.approx(2.0 * (1 + 0.2 + 4 * 0.02))
    assert candidate.accept_step_s == pytest.approx(2.0 * math.exp(-0.3))
    noisy = rule(run_sd=0.1, reference_step_s=2.0)
    assert noisy.abandon_step_s == pytest.approx(2.0 * 1.6)
    assert noisy.accept_step_s == pytest.approx(2.0 * math.exp(-0.4))


def test_a_start_that_is_unknown_counts_as_twenty_seconds() -> None:
    assert trial_length(KnownTimes(), effect=0.3, budget_left_s=1e4) == rule()
