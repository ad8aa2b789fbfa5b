"""The stated power against the comparisons that it speaks of."""

from __future__ import annotations

import math

from tests.compare.simulated import SimulatedArms

from flatout.compare.judge import judged
from flatout.compare.power import WANTED_POWER, num_trials_with, power


def test_less_noise_and_more_trials_find_more() -> None:
    def stated(run_sd: float, num_affordable: int, gate: float | None = None) -> float:
        detectable = power(run_sd, None, effect=0.05, gate=gate, trial_s=1.0, num_affordable=num_affordable).detectable
        assert detectable is not None
        return detectable

    assert stated(0.01, 20) < stated(0.03, 20) < stated(0.1, 20)
    assert stated(0.03, 40) < stated(0.03, 20) < stated(0.03, 8)
    assert stated(0.01, 20) + 0.03 <= stated(0.01, 20, gate=0.03)  # what is found lies beyond the gate


def test_too_few_trials_find_nothing() -> None:
    assert power(0.01, None, effect=0.05, gate=None, trial_s=1.0, num_affordable=2).detectable is None


def test_noise_that_few_trials_measured_takes_more_trials_than_the_same_noise_if_it_is_known() -> None:
    def num_trials(freedom: int | None) -> int | None:
        return power(0.01, freedom, effect=0.05, gate=None, trial_s=1.0, num_affordable=39).num_trials

    of_four, of_forty, known = num_trials(2), num_trials(38), num_trials(None)
    assert of_four is not None and of_forty is not None and known is not None
    assert of_four > of_forty == known


def test_trials_are_counted_in_the_order_abba() -> None:
    assert [num_trials_with(count) for count in (1, 2, 3, 4, 20)] == [2, 3, 6, 7, 39]


def test_a_planted_slowdown_is_found_in_the_stated_number_of_trials() -> None:
    """With the true noise, at least 80 % are found in that many trials; of 12 comparisons, at least 7 in 99 of 100.

    A slice of `benchmarks/compare_gate.py`.
    """
    noise, num_steps = 0.006, 30
    of_steps = 0.02 / num_steps**0.5
    needed = power(math.hypot(noise, of_steps), None, effect=0.05, gate=0.03, trial_s=1.0, num_affordable=39).num_trials
    assert needed == 15
    num_found = 0
    for seed in range(12):
        arms = SimulatedArms(0.05, noise=noise, seed=seed)
        trials = [arms.trial(num_steps) for _ in range(needed)]
        result = judged(trials, objective="step_s", gate=0.03)
        num_found += result.gate is not None and result.gate.outcome == "failed"
    assert WANTED_POWER == 0.8
    assert num_found >= 7
