"""The noise floor recovers what trials were made with, and the plan does what it promises."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from benchmarks.verdict_scenarios import SCENARIOS, judge_tunings, make_tunings, summary
from tests.verdict.trials import trial

from flatout.errors import UsageError
from flatout.records.trial import TrialResult
from flatout.records.verdict import NoiseFloor
from flatout.verdict.noise import noise_floor, plan_trials, visible_effect


def runs(
    count: int, *, seed: int = 0, run_sd: float = 0.012, step_sd: float = 0.02, drift: float = 0.0, steps: int = 100
) -> list[TrialResult]:
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        logs = rng.normal(0, run_sd) + drift * index + rng.normal(0, step_sd, steps)
        made.append(trial(index, step_s=(0.1 * np.exp(logs)).tolist(), start_s=20.0))
    return made


def test_the_spreads_of_runs_and_of_steps_are_told_apart() -> None:
    floor = noise_floor(runs(300))
    assert floor.between_sd == pytest.approx(0.012, rel=0.1)
    assert floor.step_sd == pytest.approx(0.02, rel=0.02)
    assert floor.step_correlation_time == pytest.approx(1, abs=0.1)
    assert floor.step_s == pytest.approx(0.1, rel=0.01)
    assert (floor.num_trials, floor.num_steps, floor.degrees_of_freedom, floor.start_s) == (300, 100, 298, 20.0)
    assert floor.origin == "measured"


def test_six_runs_give_the_right_size_on_average() -> None:
    found = [noise_floor(runs(6, seed=seed)).between_sd ** 2 for seed in range(200)]
    assert float(np.mean(found)) ** 0.5 == pytest.approx(0.012, rel=0.1)


def test_a_drift_is_no_noise() -> None:
    floor = noise_floor(runs(8, run_sd=0, step_sd=0.001, drift=0.01))
    assert floor.drift_per_trial == pytest.approx(0.01, rel=0.05)
    assert floor.between_sd < 0.001


def test_spikes_are_counted_and_left_out() -> None:
    spiky = []
    for run in runs(20):
        steps = list(run.step_s)
        steps[10], steps[50] = 0.5, 1.0
        spiky.append(msgspec.structs.replace(run, step_s=tuple(steps)))
    floor = noise_floor(spiky)
    assert floor.spike_share == pytest.approx(0.02)
    assert floor.step_sd == pytest.approx(0.02, rel=0.1)


def test_steps_that_come_in_waves_carry_less() -> None:
    rng = np.random.default_rng(4)
    made = []
    for index in range(10):
        steps, value = [], 0.0
        for _ in range(400):
            value = 0.8 * value + 0.6 * rng.normal(0, 0.02)
            steps.append(0.1 * np.exp(value))
        made.append(trial(index, step_s=steps))
    floor = noise_floor(made)
    assert 5 < floor.step_correlation_time < 12  # (1 + 0.8) / (1 - 0.8) = 9
    assert floor.pair_sd(100) == pytest.approx(2**0.5 * 0.02 * 0.3, rel=0.35)


def test_trials_that_failed_are_left_out_and_two_are_too_few() -> None:
    made = runs(4)
    made[1] = msgspec.structs.replace(made[1], outcome="failed")
    assert noise_floor(made).num_trials == 3
    with pytest.raises(UsageError, match="at least 3 completed trials of the same job, but got 2"):
        noise_floor(made[:3])


def test_identical_costs_have_no_noise() -> None:
    floor = noise_floor([trial(i, step_s=[0.1] * 30, peak_memory_bytes=7) for i in range(4)])
    assert floor.pair_sd(100) == pytest.approx(0, abs=1e-12)
    same_memory = [trial(i, peak_memory_bytes=7) for i in range(4)]
    assert noise_floor(same_memory, objective="peak_memory_bytes").pair_sd(1) == pytest.approx(0, abs=1e-12)


def made_floor(**values: object) -> NoiseFloor:
    return msgspec.structs.replace(noise_floor(runs(300)), **values)


def test_where_steps_are_noisy_trials_are_long_and_where_starts_are_slow_too() -> None:
    calm = plan_trials(made_floor(step_sd=0.001, between_sd=0.01), effect=0.03)
    noisy = plan_trials(made_floor(step_sd=0.2, between_sd=0.001), effect=0.03)
    slow = plan_trials(made_floor(step_sd=0.2, between_sd=0.001, start_s=600.0), effect=0.03)
    assert calm.num_steps == 20
    assert 200 < noisy.num_steps <= slow.num_steps
    endless = plan_trials(made_floor(step_sd=2.0, between_sd=0.0005, start_s=1e4), effect=0.03)
    assert 1000 < endless.num_steps <= 2000, "no trial of hours, however noisy the steps"
    longest = plan_trials(made_floor(step_sd=1.0, between_sd=0.0005, start_s=1e4), effect=0.03)
    assert longest.num_trials is not None
    assert 2000 / 1.5 < longest.num_steps <= 2000, "lengths are tried up to the longest that is allowed"


def test_a_large_effect_needs_few_trials_and_a_small_one_many() -> None:
    floor = made_floor()
    large, middle, small = (plan_trials(floor, effect=effect) for effect in (0.5, 0.03, 0.017))
    assert large.num_trials is not None
    assert large.num_trials <= 8
    assert middle.num_trials is not None
    assert 14 <= middle.num_trials <= 28
    assert small.num_trials is None or small.num_trials > middle.num_trials
    assert large.expected_s is not None
    assert middle.expected_s is not None
    assert large.expected_s < middle.expected_s
    assert plan_trials(made_floor(start_s=None), effect=0.03).expected_s is None


def test_an_effect_below_the_noise_is_refused_in_one_sentence_that_says_what_can_be_seen() -> None:
    plan = plan_trials(made_floor(between_sd=0.05), effect=0.02)
    assert plan.num_trials is None
    assert plan.reason == (
        "run-to-run standard deviation is 5.0 %: a 2.0 % gain is undetectable;"
        " the smallest detectable (80 % power) is 5.7 %"
    )
    assert "is above 100 %" in plan_trials(made_floor(between_sd=2.0), effect=0.02).reason


def test_an_effect_that_counts_as_none_is_refused() -> None:
    with pytest.raises(UsageError, match="the effect must be above"):
        plan_trials(made_floor(), effect=0.01)


def test_a_visible_effect_is_found_with_the_power_that_is_said() -> None:
    floor = made_floor(step_sd=0.0, between_sd=0.03)
    least = visible_effect(floor, 100)
    tunings = make_tunings(SCENARIOS["white 3 %"], 1 + least, tunings=300, num_screened=1)
    judged = summary(tunings, judge_tunings(tunings, gives_up=False))
    assert 0.72 <= judged["power"] <= 0.88


def test_steps_that_differ_in_time_are_no_noise_of_peak_memory() -> None:
    made = [msgspec.structs.replace(one, peak_memory_bytes=10**9) for one in runs(3, step_sd=0.2)]
    floor = noise_floor(made, objective="peak_memory_bytes")
    assert floor.trial_sd(15) == 0.0


def test_windows_with_one_end_of_an_epoch_or_two_are_no_noise() -> None:
    """Epochs of 15 steps whose end takes 2.4 s: the windows' means differ by half, the trials do not differ."""
    trials = []
    for index, first in enumerate((31, 43, 42, 38)):
        steps = [0.1 + (2.4 if number % 15 == 0 else 0.0) for number in range(first, first + 20)]
        trials.append(trial(index, step_s=steps, first_step=first))
    floor = noise_floor(trials)
    assert floor.between_sd < 1e-6
    assert floor.step_sd < 1e-6
    assert floor.step_s == pytest.approx(0.1 + 2.4 / 15)


@pytest.mark.parametrize(("weight", "is_seen"), [(0.062, True), (0.038, False)])
def test_a_correlation_counts_from_two_standard_errors_on(weight: float, is_seen: bool) -> None:
    """That of n independent steps has a standard error of 1 / sqrt(n)."""
    numbers = np.random.default_rng(0)
    logs = []
    for _ in range(4):
        noise = numbers.normal(0, 0.02, 401)
        logs.append(noise[1:] + weight * noise[:-1])
    centred = [of_trial - of_trial.mean() for of_trial in logs]
    correlation = sum(d[:-1] @ d[1:] for d in centred) / sum(d @ d for d in centred)
    assert (2 < correlation * 40 < 3) if is_seen else (1 < correlation * 40 < 2)
    floor = noise_floor([trial(i, step_s=(0.1 * np.exp(each)).tolist()) for i, each in enumerate(logs)])
    assert floor.step_correlation_time == pytest.approx(1 + 2 * correlation if is_seen else 1, abs=0.01)


def test_where_nothing_can_be_shown_trials_are_the_shortest_that_detect_within_a_twentieth_as_much() -> None:
    floor = made_floor(between_sd=0.05, step_sd=0.2, step_correlation_time=1.0)
    plan = plan_trials(floor, effect=0.02)
    assert plan.num_trials is None
    longest = visible_effect(floor, 2000)
    assert 1.02 < visible_effect(floor, plan.num_steps) / longest <= 1.05
    assert 1.05 < visible_effect(floor, round(plan.num_steps / 1.5)) / longest < 1.14
