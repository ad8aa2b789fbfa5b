"""Costs that trials take from one another have an error in common, which the interval allows for."""

from __future__ import annotations

import math

import pytest

from flatout.verdict.cost import TrialCost, WorkCost
from flatout.verdict.shared_error import shared_error


def cost(extra_s: float, *, num_measured: int, is_absent: bool = False) -> TrialCost:
    """Half of an average step of 2 s is the work of every tenth step."""
    work = WorkCost(
        kinds=("epoch_end",),
        extra_s=extra_s,
        period_steps=10.0,
        num_seen=num_measured,
        num_measured=num_measured,
        is_absent=is_absent,
    )
    return TrialCost(log=math.log(2.0), num_steps=20, step_s=2.0, regular_s=1.0, work=(work,))


def test_trials_that_measured_their_own_work_share_no_error() -> None:
    assert shared_error([[cost(10, num_measured=1)] * 4, [cost(9, num_measured=2)] * 3]).sd == 0
    assert shared_error([[], []]).sd == 0
    plain = TrialCost(log=0.0, num_steps=20, step_s=1.0, regular_s=1.0)
    assert shared_error([[plain], [plain]]).sd == 0


def test_trials_that_take_the_cost_from_one_measurement_share_its_error() -> None:
    arm = [cost(10, num_measured=1), *[cost(10, num_measured=0)] * 3]
    error = shared_error([arm, [cost(10, num_measured=1)] * 4])
    # Three of four trials take half of their cost from one measurement; the other arm's four agree exactly.
    freedom = 1 + 3
    assert error.sd == pytest.approx(3 / 4 * 0.5 * 0.1 / math.sqrt(freedom))
    assert error.degrees_of_freedom == freedom


def test_the_spread_between_measurements_counts_and_more_of_them_lower_the_error() -> None:
    def arm(*extras: float) -> list[TrialCost]:
        return [*(cost(extra, num_measured=1) for extra in extras), *[cost(10, num_measured=0)] * 2]

    other = [cost(10, num_measured=1)] * 2
    assert shared_error([arm(9, 11), other]).sd > shared_error([arm(9.5, 10.5), other]).sd
    assert shared_error([arm(9, 11, 9, 11), other]).sd < shared_error([arm(9, 11), other]).sd


def test_work_that_an_arm_never_showed_or_no_longer_has_is_not_compared() -> None:
    other = [cost(10, num_measured=1)] * 4
    assert shared_error([[cost(10, num_measured=0)] * 4, other]).sd == 0
    gone = [cost(10, num_measured=1), *[cost(10, num_measured=0, is_absent=True)] * 3]
    assert shared_error([gone, other]).sd == 0
