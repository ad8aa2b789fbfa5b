"""Impossible durations are repaired, and possible ones are not touched."""

from __future__ import annotations

from collections.abc import Callable

from tests.read.samples import event, kernel, problems

from flatout.records.events import EventTable

Read = Callable[..., EventTable]


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
