"""Screening orders candidates fairly and picks the best part."""

from __future__ import annotations

import msgspec
import pytest
from tests.verdict.trials import trial

from flatout.errors import UsageError
from flatout.records.trial import BASELINE
from flatout.verdict.screening import round_order, screen


def test_baselines_stand_first_last_and_after_every_fourth_candidate() -> None:
    assert round_order(["a", "b", "c", "d", "e"]) == (BASELINE, "a", "b", "c", "d", BASELINE, "e", BASELINE)
    assert round_order(["a", "b"], is_reversed=True) == (BASELINE, "b", "a", BASELINE)


def test_a_drift_does_not_favour_those_that_ran_early() -> None:
    order = round_order(list("abcdefgh"))
    trials = [trial(i, arm, [0.1 * 1.02**i]) for i, arm in enumerate(order)]
    assert all(one.speedup == pytest.approx(1, abs=0.001) for one in screen(trials))


def test_the_best_comes_first_and_trials_of_one_arm_are_averaged() -> None:
    trials = [
        trial(0, BASELINE, [0.1]),
        trial(1, "a", [0.1 / 1.1]),
        trial(2, "b", [0.1 / 1.2]),
        trial(3, BASELINE, [0.1]),
        trial(4, "a", [0.1 / 1.5]),
    ]
    first, second = screen(trials)
    assert (first.arm, first.num_trials, second.arm) == ("a", 2, "b")
    assert first.speedup == pytest.approx((1.1 * 1.5) ** 0.5)


def test_a_candidate_that_failed_is_left_out_and_a_missing_baseline_said() -> None:
    failed = msgspec.structs.replace(trial(1, "a"), outcome="timed_out")
    assert screen([trial(0), failed]) == ()
    with pytest.raises(UsageError, match="needs a baseline"):
        screen([trial(1, "a")])


def test_a_trial_is_held_against_baselines_of_its_own_session() -> None:
    """After the interruption the machine is half as slow again: an old baseline makes a good change look bad."""
    trials = [
        trial(0, BASELINE, (0.100,)),
        trial(1, "old", (0.080,)),
        trial(2, "new", (0.120,), session=1),
        trial(3, BASELINE, (0.150,), session=1),
        trial(4, "alone", (0.120,), session=2),
    ]
    found = {one.arm: one.speedup for one in screen(trials)}
    assert found["old"] == pytest.approx(1.25) and found["new"] == pytest.approx(1.25)
    assert found["alone"] == pytest.approx(1.25)  # none of its own: the nearest there is
