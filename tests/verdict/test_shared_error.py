"""Costs that trials take from one another have an error in common, which the interval allows for."""

from __future__ import annotations

import math

import pytest

from flatout.verdict.cost import TrialCost, WorkCost
from flatout.verdict.shared_error import shared_error


def cost(extra_s: float, *, num_measured: int, is_absent: bool = False, more: tuple[WorkCost, ...] = ()) -> TrialCost:
    """Half of an average step of 2 s is the work of every tenth step."""
    work = WorkCost(
        kinds=("epoch_end",),
        extra_s=extra_s,
        period_steps=10.0,
        num_seen=num_measured,
        num_measured=num_measured,
        is_absent=is_absent,
    )
    return TrialCost(log=math.log(2.0), num_steps=20, step_s=2.0, regular_s=1.0, work=(work, *more))


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


def test_work_without_such_an_error_does_not_make_the_error_of_other_work_less_certain() -> None:
    """Long steps that come at any place have no measurement of their own: with one degree of freedom, t is 25 times 2.

    A comparison of two jobs whose runs differed by 2 % ended with an interval of 0.008 to 89.
    """
    spikes = WorkCost(kinds=("unknown",), extra_s=0.5, period_steps=20.0, num_seen=2)
    alone, beside = (
        shared_error(
            [
                [*[cost(10, num_measured=1, more=more)] * 3, *[cost(10, num_measured=0, more=more)] * 2],
                [cost(10, num_measured=1, more=more)] * 5,
            ]
        )
        for more in ((), (spikes,))
    )
    assert alone.degrees_of_freedom == 1 + 2 + 4
    assert beside == alone


def test_two_errors_are_known_as_well_as_their_parts() -> None:
    """Satterthwaite's degrees of freedom of two equal variances with 4 and 4 are 8."""

    def of_work(kind: str, *, num_measured: int) -> WorkCost:
        return WorkCost(
            kinds=(kind,),  # type: ignore[arg-type]
            extra_s=10.0,
            period_steps=10.0,
            num_seen=num_measured,
            num_measured=num_measured,
        )

    def arm(*numbers: int) -> list[TrialCost]:
        return [cost(10, num_measured=number, more=(of_work("checkpoint", num_measured=number),)) for number in numbers]

    error = shared_error([arm(1, 0, 0, 0), arm(1, 1, 1, 1)])
    assert error.degrees_of_freedom == 8
    assert error.sd == pytest.approx(math.sqrt(2) * 3 / 4 * 0.5 * 0.1 / math.sqrt(4))


def test_one_measurement_of_work_leaves_it_within_its_own_size() -> None:
    """With one degree of freedom, a spread of a tenth could be six times the work at a level of 1 %: no work is that.

    A quarter of the cost is not measured in its own trial.
    """
    arms = [[cost(10, num_measured=1), cost(10, num_measured=0)], [cost(10, num_measured=1)]]
    error = shared_error(arms)
    assert error.degrees_of_freedom == 1 and error.most_sd == pytest.approx(0.25)
    far = [[cost(10, num_measured=1), cost(1, num_measured=1), cost(100, num_measured=1), cost(10, num_measured=0)]]
    assert shared_error([*far, [cost(10, num_measured=1)]]).most_sd == math.inf
