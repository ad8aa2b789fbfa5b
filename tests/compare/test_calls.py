"""The calls of a step, from tables of events whose calls are known."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.compare.calls import MIN_CALLS, MIN_SHARE, Calls, _own_ns, call_differences
from flatout.records.events import COLUMNS, EventTable, TraceMeta


def calls(step_s: float = 0.1, **values: tuple[float, float]) -> Calls:
    return Calls(
        step_s=step_s,
        counts={name: count for name, (count, _) in values.items()},
        seconds={name: seconds for name, (_, seconds) in values.items()},
    )


def test_the_calls_that_differ_come_by_their_time() -> None:
    a = calls(item=(1, 0.001), matmul=(8, 0.02), same=(5, 0.01))
    b = calls(item=(401, 0.004), matmul=(8, 0.05), same=(5, 0.01))
    found = call_differences([a, a], [b, b])
    assert [(call.name, call.a_calls, call.b_calls) for call in found] == [("matmul", 8, 8), ("item", 1, 401)]
    assert found[0].b_s - found[0].a_s == pytest.approx(0.03)
    assert call_differences([], [b]) == ()


@pytest.mark.parametrize(
    ("count", "seconds", "is_listed"),
    [
        (MIN_CALLS + 0.01, 0.0, True),
        (MIN_CALLS - 0.01, 0.0, False),
        (0.0, MIN_SHARE * 0.1 * 1.01, True),
        (0.0, MIN_SHARE * 0.1 * 0.99, False),
    ],
)
def test_small_differences_are_not_listed(count: float, seconds: float, is_listed: bool) -> None:
    found = call_differences([calls(x=(10, 0.01))], [calls(x=(10 + count, 0.01 + seconds))])
    assert bool(found) is is_listed


def test_the_time_of_a_call_is_without_the_calls_that_it_contains() -> None:
    """On thread 0: 0-100 contains 10-30 and 40-90, which contains 50-60; thread 1 has 20-80."""
    events = [(0, 100, 0), (10, 20, 0), (20, 60, 1), (40, 50, 0), (50, 10, 0)]
    columns = {name: np.zeros(len(events), dtype=dtype) for name, dtype in COLUMNS.items()}
    columns["start_ns"] = np.array([start for start, _, _ in events], dtype=np.int64)
    columns["duration_ns"] = np.array([duration for _, duration, _ in events], dtype=np.int64)
    columns["thread"] = np.array([thread for _, _, thread in events], dtype=np.int32)
    table = EventTable(
        meta=TraceMeta(path="x"),
        names=("op",),
        threads=(("1", "1"), ("1", "2")),
        shapes=(),
        collectives=(),
        **columns,  # type: ignore[arg-type]
    )
    assert _own_ns(table, np.arange(len(events))) == [30, 20, 60, 40, 10]
