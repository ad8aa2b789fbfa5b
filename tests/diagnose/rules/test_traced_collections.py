"""Garbage collection in plain traces: pauses of the host that hit few steps of each rank; both sides of each threshold.

Each rank's step has 1 ms in which the GPU waits for its host, and computes for the rest of it.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
from tests.diagnose.jobs import diagnosed

from flatout.testing import TraceBuilder

HOST_US = 1000.0


def rank_with_pauses(
    rank: int, paused: Collection[int], pause_us: float, step_us: float, num_steps: int
) -> TraceBuilder:
    trace, at = TraceBuilder(rank), 0.0
    for step in range(num_steps):
        pause = pause_us if step in paused else 0.0
        start = at + HOST_US + pause
        trace.step(step + 100, at, step_us + pause).launch("gemm", start - 5, 5, start, step_us - HOST_US)
        at += step_us + pause
    return trace


def is_found(
    *paused: Collection[int], pause_us: float = 50_000.0, step_us: float = 10_000.0, num_steps: int = 8
) -> bool:
    """Whether the diagnosis names collections if each rank pauses in these of its steps."""
    ranks = [rank_with_pauses(rank, steps, pause_us, step_us, num_steps) for rank, steps in enumerate(paused)]
    return any(finding.name == "garbage-collection" for finding in diagnosed(*ranks).findings)


@pytest.mark.parametrize(("pause_us", "found"), [(9_900.0, False), (10_100.0, True)])
def test_a_pause_has_at_least_ten_milliseconds(pause_us: float, found: bool) -> None:
    assert is_found({2}, {5}, pause_us=pause_us) == found


@pytest.mark.parametrize(("pause_us", "found"), [(40_000.0, False), (42_500.0, True)])
def test_a_pause_has_at_least_a_tenth_of_the_mean_step(pause_us: float, found: bool) -> None:
    """The mean step is 400 ms and a quarter of the pause."""
    assert is_found({2, 4}, {3, 5}, pause_us=pause_us, step_us=400_000.0) == found


@pytest.mark.parametrize(("num_steps", "found"), [(3, False), (4, True)])
def test_four_steps_of_a_rank_show_which_of_them_is_unusual(num_steps: int, found: bool) -> None:
    assert is_found({1}, {2}, num_steps=num_steps) == found


def test_pauses_of_one_rank_alone_are_none() -> None:
    assert is_found({2}, {5}, ())
    assert not is_found({2, 5}, ())


def test_ranks_that_pause_in_the_same_step_have_another_cause() -> None:
    assert not is_found({2, 4}, {4, 6})


def test_half_of_the_steps_can_be_paused() -> None:
    assert is_found({0, 2, 4, 6}, {1, 3, 5, 7})
