"""Verdicts from blocks within one job, against comparisons worked out by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from flatout.records.blocks import Block
from flatout.records.trial import BASELINE
from flatout.verdict.blocks import found_carry_over, judge_blocks

ABBA = ("A", "B", "B", "A")
BAAB = ("B", "A", "A", "B")
LENGTH = 20

Times = Callable[[int, str], Sequence[float]]  # of the steps of a block, by its number and arm


def blocks(times: Times, *, num_units: int = 6, periodic: Times | None = None) -> list[Block]:
    """Return units of both orders in turn; `A` is the baseline."""
    made: list[Block] = []
    before = "A"
    for number in range(4 * num_units):
        arm = (ABBA, BAAB)[number // 4 % 2][number % 4]
        steps = tuple(times(number, arm))
        made.append(
            Block(
                number=number,
                arm=BASELINE if arm == "A" else "x",
                is_switch=arm != before,
                num_carry_over=2 if arm != before else 1,
                step_s=steps,
                periodic_s=tuple(periodic(number, arm)) if periodic else (0.0,) * len(steps),
            )
        )
        before = arm
    return made


def of_arms(a: float, b: float, noise: float = 0.001) -> Times:
    """Steps of a fixed time in each arm, with the same small noise in all blocks of a job."""
    numbers = np.random.default_rng(11)

    def times(number: int, arm: str) -> Sequence[float]:
        return list((a if arm == "A" else b) * np.exp(numbers.normal(0, noise, LENGTH)))

    return times


def test_the_speedup_and_its_interval_are_those_of_a_t_test_over_the_units() -> None:
    made = blocks(of_arms(0.2, 0.1, noise=0.03))
    assert found_carry_over(made) == 0
    result = judge_blocks(made, "x")
    logs = [math.log(statistics.fmean(block.step_s)) for block in made]
    units = []
    for start in range(0, len(made), 4):
        of_unit = list(zip(made[start : start + 4], logs[start : start + 4], strict=True))
        baseline = statistics.fmean(log for block, log in of_unit if block.arm == BASELINE)
        candidate = statistics.fmean(log for block, log in of_unit if block.arm == "x")
        units.append(baseline - candidate)
    half = stats.t.ppf(1 - 0.03 / 2, len(units) - 1) * stats.sem(units)
    effect = statistics.fmean(units)
    assert result.speedup == pytest.approx(math.exp(effect))
    assert result.interval == pytest.approx((math.exp(effect - half), math.exp(effect + half)))
    assert (result.verdict, result.num_units, result.num_blocks) == ("better", 6, 24)
    assert result.error_rate == 0.05
    assert result.num_steps == 24 * LENGTH
    assert result.num_carry_over == sum(block.num_carry_over for block in made)
    assert result.baseline_step_s == pytest.approx(0.2, rel=0.02)
    assert result.step_s == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize(("length", "carry_over"), [(3, 0), (4, 2)])
def test_blocks_of_four_steps_are_the_shortest_that_show_a_carry_over(length: int, carry_over: int) -> None:
    """The first step after a switch takes half as long again."""
    made = blocks(lambda number, arm: [0.15] + [0.1] * (length - 1))
    assert found_carry_over(made) == carry_over


def test_the_interval_is_wider_if_several_candidates_share_the_job() -> None:
    made = blocks(of_arms(0.2, 0.1, noise=0.05))
    alone, shared = judge_blocks(made, "x"), judge_blocks(made, "x", num_candidates=4)
    assert alone.interval is not None
    assert shared.interval is not None
    ratio = math.log(shared.interval[1] / shared.interval[0]) / math.log(alone.interval[1] / alone.interval[0])
    assert ratio == pytest.approx(stats.t.ppf(1 - 0.03 / 4 / 2, 5) / stats.t.ppf(1 - 0.03 / 2, 5))


@pytest.mark.parametrize(
    ("num_units", "verdict"), [(0, "undecided"), (1, "undecided"), (3, "undecided"), (4, "better")]
)
def test_four_units_can_decide(num_units: int, verdict: str) -> None:
    result = judge_blocks(blocks(of_arms(0.2, 0.1), num_units=num_units), "x")
    assert result.verdict == verdict
    assert (result.interval is None) == (verdict == "undecided")
    assert result.speedup == (pytest.approx(2, rel=0.01) if num_units else None)


@pytest.mark.parametrize(
    ("b", "verdict"),
    [(0.1, "equivalent"), (0.0992, "undecided"), (0.0985, "better"), (0.1015, "worse"), (0.1008, "undecided")],
)
def test_a_difference_of_a_hundredth_or_less_is_not_called_better_or_worse(b: float, verdict: str) -> None:
    assert judge_blocks(blocks(of_arms(0.1, b, noise=0.02)), "x").verdict == verdict


def test_a_smaller_margin_can_be_asked_for() -> None:
    made = blocks(of_arms(0.1, 0.0995, noise=0.001))
    assert judge_blocks(made, "x").verdict == "equivalent"
    assert judge_blocks(made, "x", min_effect=0.002).verdict == "better"


def test_a_steady_drift_cancels() -> None:
    """Each block is 5 % slower than the one before; the arms do not differ."""
    flat = of_arms(0.1, 0.1)

    def drifting(number: int, arm: str) -> Sequence[float]:
        return [step * math.exp(0.05 * number) for step in flat(number, arm)]

    result = judge_blocks(blocks(drifting), "x")
    assert result.speedup == pytest.approx(1, abs=0.002)
    assert result.verdict == "equivalent"


def test_units_that_are_not_complete_or_belong_to_others_are_not_used() -> None:
    made = blocks(of_arms(0.2, 0.1), num_units=6)
    others = [
        Block(number=block.number + 24, arm="y" if block.arm == "x" else block.arm, is_switch=block.is_switch,
              num_carry_over=1, step_s=(5.0,) * LENGTH, periodic_s=(0.0,) * LENGTH)
        for block in made
    ]  # fmt: skip
    result = judge_blocks([*made[:-1], *others], "x")
    assert result.num_units == 5
    assert result.speedup == pytest.approx(2, rel=0.01)


def test_an_arm_that_was_not_switched_is_not_judged() -> None:
    made = blocks(of_arms(0.2, 0.1))
    made[5] = Block(
        number=5, arm=made[5].arm, is_switch=True, num_carry_over=2, step_s=(0.1,) * LENGTH,
        periodic_s=(0.0,) * LENGTH, problem="no model was found" if made[5].arm == "x" else None,
    )  # fmt: skip
    made[4] = Block(
        number=4, arm="x", is_switch=True, num_carry_over=2, step_s=(0.1,) * LENGTH,
        periodic_s=(0.0,) * LENGTH, problem="no model was found",
    )  # fmt: skip
    result = judge_blocks(made, "x")
    assert (result.verdict, result.speedup, result.problem) == ("undecided", None, "no model was found")


# Carry-over.


def with_transient(amplitude: float, num_steps: int, noise: float = 0.0001, length: int = LENGTH) -> list[Block]:
    """The first steps after each switch to `B` take longer; the arms do not differ otherwise."""
    numbers = np.random.default_rng(3)
    before = "A"

    def times(number: int, arm: str) -> Sequence[float]:
        nonlocal before
        steps = 0.1 * np.exp(numbers.normal(0, noise, length))
        if arm == "B" and before == "A":
            steps[:num_steps] *= 1 + amplitude
        before = arm
        return list(steps)

    return blocks(times)


@pytest.mark.parametrize(
    ("amplitude", "num_steps", "discarded"),
    [(0.5, 1, 2), (0.5, 3, 6), (0.5, 5, 10), (0.5, 6, 10), (0.5, 10, 10), (0.009, 3, 0), (0.011, 3, 6), (-0.5, 3, 6)],
)
def test_twice_the_steps_that_differ_after_a_switch_are_discarded(
    amplitude: float, num_steps: int, discarded: int
) -> None:
    made = with_transient(amplitude, num_steps)
    assert found_carry_over(made) == discarded
    result = judge_blocks(made, "x")
    num_switches = sum(block.is_switch for block in made)
    assert result.num_carry_over == sum(block.num_carry_over for block in made) + discarded * num_switches
    if abs(amplitude) > 0.01:
        assert result.speedup == pytest.approx(1, abs=0.0005)


@pytest.mark.parametrize(("excess", "discarded"), [(0.0240, 0), (0.0255, 2)])
def test_a_step_must_differ_by_four_standard_errors(excess: float, discarded: int) -> None:
    """The steps lie 1 % around their median: 1.48 % by its deviation; of nine, a median's error is 0.62 %."""
    steps = 0.1 * np.array([1 + excess, *[1.0] * 11, *[1.01, 0.99] * 4])
    switched = [
        Block(number=4 * n, arm="x", is_switch=True, num_carry_over=2, step_s=tuple(steps), periodic_s=(0.0,) * LENGTH)
        for n in range(9)
    ]
    assert found_carry_over(switched) == discarded


def test_blocks_that_still_change_in_their_second_half_are_too_short() -> None:
    numbers = np.random.default_rng(3)

    def settling(number: int, arm: str) -> Sequence[float]:
        slope = 0.01 if arm == "B" else 0.0
        return list(0.1 * np.exp(numbers.normal(0, 0.001, LENGTH) - slope * np.arange(LENGTH)))

    made = blocks(settling)
    assert found_carry_over(made) is None
    result = judge_blocks(made, "x")
    assert (result.verdict, result.interval) == ("undecided", None)
    assert "too short" in result.reason


@pytest.mark.parametrize(("num_switches", "found"), [(2, 0), (3, 2)])
def test_carry_over_shows_in_three_switches(num_switches: int, found: int) -> None:
    switched = [block for block in with_transient(0.5, 1) if block.is_switch and block.arm == "x"][:num_switches]
    assert found_carry_over(switched) == found


# What weighs the same in both arms.


def evaluations(at: Sequence[int], work: float) -> Times:
    return lambda number, arm: [work if number in at and step == 15 else 0.0 for step in range(LENGTH)]


def with_work(times: Times, work: Times) -> Times:
    return lambda number, arm: [a + b for a, b in zip(times(number, arm), work(number, arm), strict=True)]


def test_evaluations_that_fell_into_the_blocks_of_one_arm_weigh_the_same_in_both() -> None:
    """Three evaluations of 1 s, all in blocks of the baseline: 3 s in 480 steps, so 6.25 ms per step of either arm."""
    work = evaluations((0, 3, 5), 1.0)
    made = blocks(with_work(of_arms(0.02, 0.01, noise=0.0001), work), periodic=work)
    result = judge_blocks(made, "x")
    assert result.periodic_s_per_step == pytest.approx(0.00625)
    assert result.speedup == pytest.approx(0.02625 / 0.01625, rel=0.001)
    assert (result.baseline_step_s, result.step_s) == (pytest.approx(0.02, rel=0.01), pytest.approx(0.01, rel=0.01))


@pytest.mark.parametrize(("num_each", "is_of_arm"), [(3, False), (4, True)])
def test_work_that_changes_with_the_arm_counts_from_four_times_in_each(num_each: int, is_of_arm: bool) -> None:
    """Evaluations take 1 s in the baseline and 0.5 s with the changes; 2N of them in 480 steps."""
    of_a, of_b = (0, 3, 5, 6)[:num_each], (1, 2, 4, 7)[:num_each]

    def work(number: int, arm: str) -> Sequence[float]:
        return evaluations(of_a if arm == "A" else of_b, 1.0 if arm == "A" else 0.5)(number, arm)

    made = blocks(with_work(of_arms(0.02, 0.02, noise=0.0001), work), periodic=work)
    result = judge_blocks(made, "x")
    frequency = 2 * num_each / 480
    expected = (0.02 + frequency) / (0.02 + frequency / 2) if is_of_arm else 1.0
    assert result.speedup == pytest.approx(expected, rel=0.001)


def with_spikes(num_a: int, num_b: int, *, num_units: int = 6) -> list[Block]:
    """Steps of 10 ms, of which the given number in each block takes 50 ms more in some blocks, at its end."""
    numbers = np.random.default_rng(3)

    def times(number: int, arm: str) -> Sequence[float]:
        steps = 0.01 * np.exp(numbers.normal(0, 0.001, LENGTH))
        count = num_a if arm == "A" else num_b
        steps[LENGTH - count :] += 0.05
        return list(steps)

    return blocks(times, num_units=num_units)


def test_rare_long_steps_weigh_the_same_in_both_arms() -> None:
    result = judge_blocks(with_spikes(1, 1), "x")
    assert result.num_spikes == 24
    assert result.periodic_s_per_step == pytest.approx(0.0025, rel=0.01)
    assert result.baseline_step_s == pytest.approx(0.01 * 0.95, rel=0.1)
    assert result.verdict == "equivalent"


@pytest.mark.parametrize(("count", "num_spikes"), [(1, 24), (2, 0)])
def test_long_steps_are_rare_up_to_a_twentieth(count: int, num_spikes: int) -> None:
    assert judge_blocks(with_spikes(count, count), "x").num_spikes == num_spikes


@pytest.mark.parametrize(("length_factor", "num_spikes"), [(1.49, 0), (1.51, 24)])
def test_a_long_step_takes_half_as_long_again_as_the_usual_one(length_factor: float, num_spikes: int) -> None:
    def times(number: int, arm: str) -> Sequence[float]:
        return [*[0.01] * (LENGTH - 1), 0.01 * length_factor]

    assert judge_blocks(blocks(times), "x").num_spikes == num_spikes


def test_long_steps_that_only_one_arm_has_count_against_it() -> None:
    result = judge_blocks(with_spikes(1, 0), "x")
    assert result.num_spikes == 0
    assert result.speedup == pytest.approx((0.01 + 0.05 / LENGTH) / 0.01, rel=0.01)
    assert result.verdict == "better"


def test_changes_that_act_on_long_steps_are_judged_by_all_steps() -> None:
    made = with_spikes(1, 1)
    result = judge_blocks(made, "x", keeps_spikes=True)
    assert result.num_spikes == 0
    assert result.baseline_step_s == pytest.approx(0.0125, rel=0.01)


@pytest.mark.parametrize(("share", "num_spikes"), [(3, 10), (5, 0)])
def test_long_steps_differ_between_the_arms_if_chance_would_do_that_in_one_job_of_a_hundred(
    share: int, num_spikes: int
) -> None:
    """The baseline has a long step more than the other arm in `share` of five units, and both have one in each unit.

    Over the units, t is 2.45 and infinite; at 1 % and four degrees of freedom, Student's quantile is 4.6.
    """

    def times(number: int, arm: str) -> Sequence[float]:
        unit, place = divmod(number, 4)
        is_first_of_arm = place == (0 if arm == (ABBA, BAAB)[unit % 2][0] else 1)
        has_more = arm == "A" and unit < share
        steps = [0.01] * LENGTH
        if is_first_of_arm or has_more:
            steps[-1] = 0.06
        return steps

    result = judge_blocks(blocks(times, num_units=5), "x")
    assert result.num_spikes == (10 + share if num_spikes else 0)


# Levels, on blocks whose differences are made by hand.


def of_units(contrasts: Sequence[float]) -> list[Block]:
    """Blocks of which each unit has this log of the baseline's cost over the candidate's."""

    def times(number: int, arm: str) -> Sequence[float]:
        return [0.1 * math.exp(contrasts[number // 4] if arm == "A" else 0.0)] * LENGTH

    return blocks(times, num_units=len(contrasts))


@pytest.mark.parametrize(("factor", "verdict"), [(0.98, "equivalent"), (1.02, "undecided")])
def test_arms_are_equivalent_if_both_one_sided_tests_at_five_percent_say_so(factor: float, verdict: str) -> None:
    """The difference is 0 in the mean, and its one-sided bound is just within or beyond 1 %."""
    signs = np.array([1.0, -1.0] * 3)
    bound_of_unit_spread = float(stats.t.ppf(0.95, 5) * stats.sem(signs))
    made = of_units((signs * math.log1p(0.01) * factor / bound_of_unit_spread).tolist())
    assert judge_blocks(made, "x").verdict == verdict


@pytest.mark.parametrize(("factor", "is_settled"), [(0.98, True), (1.02, False)])
def test_blocks_are_too_short_if_halves_differ_as_chance_does_in_one_job_of_a_thousand(
    factor: float, is_settled: bool
) -> None:
    """Both halves of the second half differ by 5 % in the mean of four blocks, with a spread at the limit."""
    deviations = np.array([1.0, -1.0, 1.0, -1.0])
    limit = float(stats.t.ppf(1 - 0.001 / 2, 3) * stats.sem(deviations))
    relative = 0.05 + deviations * 0.05 / limit / factor  # to the median of the second half
    changes = relative / (1 - relative / 2)
    switched = []
    for number, change in enumerate(changes):
        # Each quarter of a block is longer than the next one by `change` of the usual step.
        quarters = [1 + 3 * change, 1 + 2 * change, 1 + change, 1.0]
        steps = tuple(0.1 * quarter for quarter in quarters for _ in range(LENGTH // 4))
        switched.append(
            Block(number=number, arm="x", is_switch=True, num_carry_over=2, step_s=steps, periodic_s=(0.0,) * LENGTH)
        )
    assert (found_carry_over(switched) is not None) == is_settled


@pytest.mark.parametrize(("last", "num_spikes"), [(0.10, 5), (0.12, 0)])
def test_the_level_at_which_long_steps_differ_is_one_percent(last: float, num_spikes: int) -> None:
    """Only the baseline has them, one in each of five units; over the units, t is 4.56 or 4.68, and the limit 4.60."""

    def times(number: int, arm: str) -> Sequence[float]:
        unit, place = divmod(number, 4)
        steps = [0.01] * LENGTH
        if arm == "A" and place == (ABBA, BAAB)[unit % 2].index("A"):
            steps[-1] += 0.1 * (last if unit == 4 else 1.0)
        return steps

    assert judge_blocks(blocks(times, num_units=5), "x").num_spikes == num_spikes
