"""The waits of a starved loader are spread over the steps of a burst; other waits stay where they are."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.step_log.bursts import MAX_LONG_SHARE, spread_bursts, without_bursts


def every(period: int, num: int = 60, long_s: float = 0.6) -> np.ndarray:
    waits_s = np.zeros(num)
    waits_s[::period] = long_s
    return waits_s


@pytest.mark.parametrize(
    ("period", "num_workers", "is_burst"),
    [
        (2, 2, True),
        (4, 4, True),
        (5, 4, True),  # 1.25 times the workers: they do not keep in step
        (6, 4, False),
        (2, 1, False),  # one worker delivers one batch at a time
        (2, 0, False),
    ],
)
def test_long_waits_at_least_once_in_as_many_steps_as_workers_are_bursts(
    period: int, num_workers: int, is_burst: bool
) -> None:
    assert (spread_bursts(every(period), num_workers) is not None) is is_burst


@pytest.mark.parametrize(("num_steps", "is_burst"), [(4, False), (5, True)])
def test_three_long_waits_are_bursts(num_steps: int, is_burst: bool) -> None:
    assert (spread_bursts(every(2, num_steps), 2) is not None) is is_burst


@pytest.mark.parametrize(("share", "is_burst"), [(MAX_LONG_SHARE, True), (MAX_LONG_SHARE + 0.1, False)])
def test_where_nearly_all_steps_wait_nothing_is_spread(share: float, is_burst: bool) -> None:
    assert MAX_LONG_SHARE == 0.8
    waits_s = np.where(np.arange(60) % 10 < round(10 * share), 0.6, 0.0)
    assert (spread_bursts(waits_s, 2) is not None) is is_burst


@pytest.mark.parametrize(("short_s", "is_burst"), [(0.29, True), (0.31, False)])
def test_a_wait_is_long_from_half_of_the_usual_long_wait_on(short_s: float, is_burst: bool) -> None:
    waits_s = np.where(np.arange(60) % 2 == 0, 0.6, short_s)
    assert (spread_bursts(waits_s, 2) is not None) is is_burst


def test_the_time_stays_the_same_and_each_step_gets_its_part() -> None:
    waits_s = every(2)
    change_s = spread_bursts(waits_s, 2)
    assert change_s is not None
    assert (waits_s + change_s)[5:-5] == pytest.approx(np.full(50, 0.3), rel=0.03)
    assert change_s.sum() == pytest.approx(0.0, abs=1e-9)


def test_what_exceeds_twice_the_usual_long_wait_stays_in_its_step() -> None:
    waits_s = every(2)
    waits_s[30] = 10.0
    change_s = spread_bursts(waits_s, 2)
    assert change_s is not None
    assert (waits_s + change_s)[30] == pytest.approx(10.0 - 1.2 + (1.2 + 0.0) / 2, rel=0.01)


def test_only_ranks_whose_steps_follow_the_waits_are_evened_out() -> None:
    waits_s = np.stack([every(2), np.zeros(60)])
    following = 0.1 + every(2)
    constant = np.full(60, 0.1)
    is_ordinary = np.ones(60, dtype=np.bool_)
    evened_s, evened_waits_s = without_bursts(
        np.stack([following, constant]), waits_s, np.zeros_like(waits_s), is_ordinary, 2
    )
    assert evened_s[0, 5:-5] == pytest.approx(np.full(50, 0.4), rel=0.03)
    assert evened_s[1] == pytest.approx(constant)
    assert evened_waits_s[1] == pytest.approx(np.zeros(60))
