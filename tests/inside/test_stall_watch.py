"""The period of stalls, found from step times while a job runs."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from flatout.inside.phases.stall_watch import StallPeriod, StallWatch

REGULAR_S = 0.010


def watched(stalls: Mapping[int, float], num_steps: int = 200, *, together: int = 1) -> StallPeriod | None:
    """Return the period after so many steps, reported in groups of `together`."""
    watch = StallWatch()
    times = [REGULAR_S + stalls.get(step, 0.0) for step in range(num_steps)]
    for first in range(0, num_steps, together):
        watch.add(first, times[first : first + together])
    return watch.period()


def every(period: int, stall_s: float, *, until: int = 200) -> dict[int, float]:
    return dict.fromkeys(range(period, until, period), stall_s)


@pytest.mark.parametrize("together", [1, 7, 50])
@pytest.mark.parametrize("period", [5, 20, 40])
def test_every_nth_step_is_long(period: int, together: int) -> None:
    found = watched(every(period, 0.5), together=together)
    assert found is not None
    assert (found.steps, found.last % period) == (period, 0)
    assert found.stall_s == pytest.approx(0.5)
    assert found.next_from(found.last + 1) == found.last + period
    assert found.next_from(found.last + period) == found.last + period
    assert found.next_from(found.last + period + 1) == found.last + 2 * period


def test_three_stalls_show_a_period_and_two_do_not() -> None:
    assert watched({40: 0.5, 80: 0.5}) is None
    assert watched({40: 0.5, 80: 0.5, 120: 0.5}) is not None


def test_a_shorter_period_is_part_of_the_regular_step() -> None:
    assert watched(every(4, 0.5)) is None


@pytest.mark.parametrize(("third", "is_found"), [(101, True), (99, True), (102, False), (98, False)])
def test_distances_may_differ_by_one_step(third: int, is_found: bool) -> None:
    assert (watched({20: 0.5, 60: 0.5, third: 0.5}) is not None) == is_found


@pytest.mark.parametrize(("excess", "is_found"), [(0.0101, True), (0.0099, False)])
def test_a_long_step_takes_twice_the_median(excess: float, is_found: bool) -> None:
    assert (watched(every(10, excess)) is not None) == is_found


@pytest.mark.parametrize(("stall_s", "is_found"), [(0.0215, True), (0.0205, False)])
def test_stalls_of_less_than_a_twentieth_of_the_time_are_not_traced(stall_s: float, is_found: bool) -> None:
    """A period of 40 steps of 10 ms: a twentieth of all time is 400 / 19 = 21.05 ms."""
    assert (watched(every(40, stall_s)) is not None) == is_found


@pytest.mark.parametrize(("spike", "is_found"), [(0.09, True), (0.11, False)])
def test_spikes_of_less_than_a_fifth_of_the_stall_do_not_hide_its_period(spike: float, is_found: bool) -> None:
    assert (watched(every(40, 0.5) | {190: spike}) is not None) == is_found


def test_a_stall_that_lasts_into_the_next_step_begins_with_its_first() -> None:
    found = watched(every(30, 0.5) | {step + 1: 0.3 for step in range(30, 200, 30)})
    assert found is not None
    assert (found.last % 30, found.steps, found.stall_s) == (0, 30, pytest.approx(0.8))


def test_steps_that_spike_by_chance_have_no_period() -> None:
    chance = random.Random(5)
    num_found = 0
    for _ in range(200):
        spikes = {step: 0.1 for step in range(200) if chance.random() < 0.05}
        num_found += watched(spikes) is not None
    assert num_found <= 20
