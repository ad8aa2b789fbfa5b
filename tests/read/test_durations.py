"""Impossible durations are repaired, and possible ones are not touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.read.samples import event, kernel, problems

from flatout.records.events import EventTable

Read = Callable[..., EventTable]


@pytest.fixture
def read(read: Read) -> Read:
    """`read(events)`: a bare list would be noted as such."""
    return lambda events: read({"traceEvents": events})


def test_negative_durations_become_zero(read: Read) -> None:
    table = read([kernel("a", 1, -5), kernel("b", 2, 3), event("cpu_op", "c", 1, -1)])
    assert sorted(table.duration_ns.tolist()) == [0, 0, 3000]
    assert problems(table) == "2 events have a negative or no duration"


def test_an_overflowed_duration_ends_at_the_next_start_on_its_stream(read: Read) -> None:
    kernels = [kernel("a", 10 * number, 9) for number in range(100)]
    kernels[40] = kernel("overflow", 400, 1_600_000)  # 1.6 s in a trace of 1 ms
    other_stream = [kernel("b", 10 * number + 5, 9, stream=8) for number in range(100)]
    table = read(kernels + other_stream)
    assert table.duration_ns[table.name == table.names.index("overflow")].tolist() == [10_000]
    assert problems(table) == "1 event has an impossible duration"
    assert "1.60 s less" in table.quality[0].effect


def test_an_hour_at_the_end_of_a_stream_ends_with_the_trace(read: Read) -> None:
    table = read([kernel("a", 0, 10), kernel("hour", 500, 3_600_000_000), event("cpu_op", "last", 600, 10)])
    assert table.duration_ns[table.name == table.names.index("hour")].tolist() == [100_000]


def test_overlap_alone_is_no_error(read: Read) -> None:
    """Programmatic dependent launch and CUDA graphs let kernels of one stream overlap."""
    overlapping = [kernel("long", 0, 200), kernel("early", 1, 250), kernel("next", 300, 10), kernel("end", 900, 10)]
    table = read(overlapping)
    assert sorted(table.duration_ns.tolist()) == [10_000, 10_000, 200_000, 250_000] and not table.quality


def test_a_collective_that_outlasts_the_trace_is_real(read: Read) -> None:
    """A rank that waits for a late one: 17 s have been seen in a step of 0.1 s."""
    events = [kernel("gemm", 10 * number, 9) for number in range(100)]
    table = read([*events, kernel("ncclDevKernel_AllReduce", 900, 17_000, stream=20)])
    assert not table.quality


def test_a_long_annotation_is_no_error(read: Read) -> None:
    table = read([event("user_annotation", "ProfilerStep#1", 0, 13_300_000), kernel("a", 5, 1), kernel("b", 7, 1)])
    assert not table.quality
    table = read([event("cpu_op", "overflow", 0, 2.0**60 / 1000), kernel("a", 5, 1), kernel("b", 7, 1)])
    assert "impossible" in problems(table)


def test_order_is_kept_after_a_repair(read: Read) -> None:
    events = [kernel("a", 5, -1), event("cpu_op", "b", 5, 0.5), kernel("c", 5, 0.25, stream=9)]
    assert read(events).duration_ns.tolist() == [500, 250, 0]


def marks(read: Read, *durations_us: float, num_kernels: int = 40) -> tuple[list[int], str]:
    """Durations of marks of steps that begin every 10 ms, and what is said of them."""
    steps = [event("user_annotation", f"ProfilerStep#{n}", 10_000 * n, dur) for n, dur in enumerate(durations_us)]
    table = read([*steps, *(kernel("gemm", 1000 * number, 900) for number in range(num_kernels))])
    names = [table.names[name] for name in table.name]
    found = {name: ns for name, ns in zip(names, table.duration_ns.tolist(), strict=True) if name[0] == "P"}
    return [found[f"ProfilerStep#{n}"] // 1000 for n in range(len(durations_us))], problems(table)


def test_a_mark_of_a_step_with_a_corrupt_end_is_cut_at_the_next_one(read: Read) -> None:
    found, said = marks(read, 9_990, 7_000_000, 9_990, 9_990)
    assert found == [9_990, 10_000, 9_990, 9_990]
    assert said == "1 mark of a step (ProfilerStep) lasts far into what follows it"


def test_the_last_mark_with_a_corrupt_end_is_cut_at_the_end_of_all_else(read: Read) -> None:
    found, said = marks(read, 9_990, 7_000_000, 9_990, 9_000_000)
    assert found == [9_990, 10_000, 9_990, 9_900]
    assert said == "2 marks of steps (ProfilerStep) last far into what follows them"


def test_marks_that_overlap_or_outlast_a_little_are_left(read: Read) -> None:
    durations = [9_990, 10_900, 10_000, 70_000]
    assert marks(read, *durations) == (durations, "")
    assert marks(read, 7_000_000) == ([7_000_000], "")  # nothing says how long a step is


def test_marks_of_other_threads_do_not_follow_each_other(read: Read) -> None:
    table = read(
        [
            event("user_annotation", "ProfilerStep#1", 0, 30_000, tid=1),
            event("user_annotation", "ProfilerStep#1", 10, 30_000, tid=2),
            event("user_annotation", "ProfilerStep#2", 30_000, 30_000, tid=1),
        ]
    )
    assert table.duration_ns.tolist() == [30_000_000] * 3 and not table.quality
