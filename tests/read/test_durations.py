"""Impossible durations are repaired, and possible ones are not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.read.samples import event, kernel, problems

from flatout.records.events import EventTable, Kind

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


# --- work that outlasts later work of its stream


def copy(ts: float, dur: float, *, correlation: int, stream: int = 7) -> dict[str, Any]:
    arguments = {"device": 0, "stream": stream, "correlation": correlation, "bytes": 9_700_000}
    return event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", ts, dur, pid=0, tid=stream, **arguments)


def gemms(num: int, *, every_us: float = 100) -> list[dict[str, Any]]:
    return [kernel("gemm", every_us * number, 90, correlation=100 + number) for number in range(num)]


def test_a_copy_that_outlasts_later_kernels_of_its_stream_ends_where_the_next_one_begins(read: Read) -> None:
    table = read([*gemms(200), copy(3_091, 5_000, correlation=1)])
    assert table.duration_ns[table.kind == Kind.MEMCPY].tolist() == [9_000]
    (note,) = table.quality
    assert note.problem == "1 piece of GPU work outlasts later work on its stream, which is impossible"
    assert "4.99 ms less in total" in note.effect


@pytest.mark.parametrize(("duration_us", "kept_us"), [(200, 200), (200.001, 100)])
def test_a_kernel_may_outlast_a_later_one_by_ten_microseconds(read: Read, duration_us: float, kept_us: float) -> None:
    events = [kernel("long", 0, duration_us, correlation=1), kernel("next", 100, 90, correlation=2)]
    table = read([*events, kernel("end", 900, 10, correlation=3)])
    assert table.duration_ns[0] == kept_us * 1000
    assert bool(table.quality) == (kept_us == 100)


@pytest.mark.parametrize(("duration_us", "kept_us"), [(110, 110), (110.001, 100)])
def test_a_copy_may_not_run_into_its_successor(read: Read, duration_us: float, kept_us: float) -> None:
    table = read([copy(0, duration_us, correlation=1), kernel("next", 100, 900, correlation=2)])
    assert table.duration_ns[0] == kept_us * 1000


def test_a_kernel_may_run_into_its_successor(read: Read) -> None:
    """Programmatic dependent launch: the successor waits for the rest inside."""
    table = read([kernel("long", 0, 500, correlation=1), kernel("next", 100, 900, correlation=2)])
    assert table.duration_ns.tolist() == [500_000, 900_000] and not table.quality


def test_the_kernels_of_one_graph_may_overlap_but_not_what_follows_the_graph(read: Read) -> None:
    graph = [kernel("branch", 0, 400, correlation=1), kernel("branch", 10, 50, correlation=1)]
    table = read([*graph, kernel("next", 500, 90, correlation=2), kernel("end", 900, 10, correlation=3)])
    assert table.duration_ns[0] == 400_000 and not table.quality
    graph[0] = kernel("branch", 0, 800, correlation=1)
    table = read([*graph, kernel("next", 500, 90, correlation=2), kernel("end", 900, 10, correlation=3)])
    assert table.duration_ns[0] == 500_000


def test_work_of_other_streams_and_devices_may_overlap(read: Read) -> None:
    other_device = [
        event("kernel", "gemm", 100.0 * n, 90, pid=1, tid=7, device=1, stream=7, correlation=500 + n) for n in range(50)
    ]
    collective = kernel("ncclDevKernel_AllReduce", 5, 4_000, stream=20, correlation=1)
    table = read([*gemms(50), collective, *other_device])
    assert not table.quality


@pytest.mark.parametrize(("excess_us", "limit"), [(99, None), (100, "medium")])
def test_one_percent_of_repaired_time_lowers_the_confidence(read: Read, excess_us: float, limit: str | None) -> None:
    """The starts span 10 ms."""
    events = [kernel("long", 0, 100 + excess_us, correlation=1), kernel("next", 100, 1, correlation=2)]
    (note,) = read([*events, kernel("end", 10_000, 1, correlation=3)]).quality
    assert note.max_confidence == limit
