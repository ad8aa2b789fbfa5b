"""The attribution rules: cases computed by hand, and the fast implementation held against the slow oracle.

Each hand-made case is run by both implementations. Times are in us; a part is written `("compute", 20, 60)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.attribute import oracle
from tests.attribute.oracle import Step, Timeline, split_communication
from tests.attribute.strategies import MIB, PYTHON_LOADER, group_traces, traces

from flatout.records.diagnosis import PART_NAMES, Part
from flatout.records.events import COLUMNS, GPU_WORK, CollectiveArgs, EventTable, Kind
from flatout.testing import TraceBuilder

AUTOGRAD, OTHER = 2, 3  # host threads
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fast(table: EventTable) -> Timeline:
    """The fast implementation's answer in the oracle's form: neighbours of one part joined."""
    from flatout.attribute.rank import attribute_rank

    timeline = attribute_rank(table)
    segments: list[tuple[int, int, str]] = []
    for start, end, part in zip(*map(np.ndarray.tolist, columns_of(timeline.segments)), strict=True):
        name = "communication" if part == Part.COMMUNICATION_UNSPLIT else PART_NAMES[part]
        if segments and segments[-1][2] == name and segments[-1][1] == start:
            segments[-1] = (segments[-1][0], end, name)
        elif start != end:
            segments.append((start, end, name))
    steps = [Step(number=step.number, start=step.start_ns, end=step.end_ns) for step in timeline.steps]
    window = (timeline.window_start_ns, timeline.window_end_ns)
    lead_in = (window[0], steps[0].start if steps else window[0])
    return Timeline(window=window, lead_in=lead_in, steps=steps, segments=segments)


def columns_of(segments: Any) -> tuple[Any, Any, Any]:
    return segments.start_ns, segments.end_ns, segments.part


IMPLEMENTATIONS = {"oracle": oracle.attribute, "fast": fast}
by_both = pytest.mark.parametrize("attribute", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
Attribute = Callable[[EventTable], Timeline]


def parts(timeline: Timeline) -> list[tuple[str, float, float]]:
    return [(part, start / 1000, end / 1000) for start, end, part in timeline.segments]


def steps(timeline: Timeline) -> list[tuple[int, float, float]]:
    return [(step.number, step.start / 1000, step.end / 1000) for step in timeline.steps]


def lead_in(timeline: Timeline) -> tuple[float, float]:
    return timeline.lead_in[0] / 1000, timeline.lead_in[1] / 1000


def one_step(duration: float = 60) -> TraceBuilder:
    return TraceBuilder().step(1, 0, duration)


# --- GPU busy


@by_both
def test_gpu_busy_is_compute_and_the_rest_follows_the_launch(attribute: Attribute) -> None:
    trace = one_step(100).launch("gemm", 10, 5, 20, 40)
    timeline = attribute(trace.to_table())
    assert parts(timeline) == [
        ("host_launch", 0, 15),
        ("launch_latency", 15, 20),
        ("compute", 20, 60),
        ("host_launch", 60, 100),
    ]
    assert steps(timeline) == [(1, 0, 100)]
    assert lead_in(timeline) == (0, 0)


@by_both
def test_communication_under_compute_is_compute(attribute: Attribute) -> None:
    trace = one_step().launch("gemm", 10, 5, 20, 20).collective("allreduce", 16, 30, 30)
    assert parts(attribute(trace.to_table()))[2:] == [("compute", 20, 40), ("communication", 40, 60)]


@by_both
def test_a_copy_counts_only_where_nothing_else_runs(attribute: Attribute) -> None:
    trace = one_step(50).copy("HtoD", num_bytes=64, launch_at=0, start=1, duration=49)
    trace.collective("allreduce", 5, 10, 10).launch("gemm", 7, 1, 30, 5, stream=20)
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 1),
        ("memory_copy", 1, 10),
        ("communication", 10, 20),
        ("memory_copy", 20, 30),
        ("compute", 30, 35),
        ("memory_copy", 35, 50),
    ]


@by_both
def test_a_memory_set_is_memory_copy(attribute: Attribute) -> None:
    trace = one_step(10).memset(num_bytes=64, launch_at=0, start=1, duration=9)
    assert parts(attribute(trace.to_table())) == [("host_launch", 0, 1), ("memory_copy", 1, 10)]


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "void two_shot_all_reduce_kernel<c10::BFloat16>",
        "void vllm::cross_device_reduce_2stage<__half, 8>",
    ],
)
@by_both
def test_communication_kernels_are_known_by_name(attribute: Attribute, name: str) -> None:
    trace = one_step(10).launch(name, 0, 1, 1, 9)
    assert parts(attribute(trace.to_table())) == [("host_launch", 0, 1), ("communication", 1, 10)]


@by_both
def test_a_kernel_with_collective_arguments_is_communication_whatever_its_name(attribute: Attribute) -> None:
    trace = one_step(10).collective("allreduce", 0, 1, 9, kernel_name="my_ring")
    assert parts(attribute(trace.to_table())) == [("host_launch", 0, 1), ("communication", 1, 10)]


@by_both
def test_a_copy_launched_inside_a_collectives_annotation_is_communication(attribute: Attribute) -> None:
    trace = one_step(30).annotation("nccl:all_gather", 0, 5)
    trace.copy("DtoD", num_bytes=64, launch_at=1, start=10, duration=10)
    trace.copy("DtoD", num_bytes=64, launch_at=6, start=20, duration=10)
    assert parts(attribute(trace.to_table()))[2:] == [("communication", 10, 20), ("memory_copy", 20, 30)]


@by_both
def test_a_copy_inside_another_threads_collective_annotation_is_a_copy(attribute: Attribute) -> None:
    trace = one_step(20).annotation("nccl:all_gather", 0, 5, thread=OTHER)
    trace.copy("DtoD", num_bytes=64, launch_at=1, start=10, duration=10)
    assert parts(attribute(trace.to_table()))[-1] == ("memory_copy", 10, 20)


@by_both
def test_a_copy_with_collective_arguments_is_communication(attribute: Attribute) -> None:
    table = one_step(20).copy("DtoD", num_bytes=64, launch_at=1, start=10, duration=10).to_table()
    is_copy = table.is_kind(Kind.MEMCPY)
    table = msgspec.structs.replace(
        table,
        collectives=(CollectiveArgs(operation="_allgather_base"),),
        collective=np.where(is_copy, 0, -1).astype(COLUMNS["collective"]),
    )
    assert parts(attribute(table))[-1] == ("communication", 10, 20)


@by_both
def test_annotations_and_waits_on_the_devices_timeline_are_no_work(attribute: Attribute) -> None:
    trace = one_step(20).launch("gemm", 0, 2, 10, 5).gpu_annotation("ProfilerStep#1", 0, 90).gpu_sync(2, 90)
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 2),
        ("launch_latency", 2, 10),
        ("compute", 10, 15),
        ("host_launch", 15, 20),
    ]


# --- window, steps, lead-in


@by_both
def test_the_window_ends_with_the_last_gpu_work(attribute: Attribute) -> None:
    trace = one_step(30).launch("gemm", 5, 5, 10, 10).launch("gemm", 22, 2, 50, 10)
    timeline = attribute(trace.to_table())
    assert parts(timeline) == [
        ("host_launch", 0, 10),
        ("compute", 10, 20),
        ("host_launch", 20, 24),
        ("launch_latency", 24, 50),
        ("compute", 50, 60),
    ]
    assert steps(timeline) == [(1, 0, 60)]


@by_both
def test_idle_after_the_last_step_with_nothing_open_is_unattributed(attribute: Attribute) -> None:
    trace = one_step(30).launch("gemm", 5, 5, 10, 10).launch("gemm", 40, 2, 50, 10)
    assert parts(attribute(trace.to_table()))[2:] == [
        ("host_launch", 20, 30),
        ("unattributed", 30, 40),
        ("host_launch", 40, 42),
        ("launch_latency", 42, 50),
        ("compute", 50, 60),
    ]


@by_both
def test_without_steps_the_window_spans_host_events_and_gpu_work(attribute: Attribute) -> None:
    trace = TraceBuilder().op("aten::a", 0, 10).launch("gemm", 20, 2, 30, 10).op("aten::b", 45, 5)
    trace.overhead(80, 5).gpu_sync(80, 5)
    timeline = attribute(trace.to_table())
    assert parts(timeline) == [
        ("host_launch", 0, 10),
        ("unattributed", 10, 20),
        ("host_launch", 20, 22),
        ("launch_latency", 22, 30),
        ("compute", 30, 40),
        ("unattributed", 40, 45),
        ("host_launch", 45, 50),
    ]
    assert steps(timeline) == []


@by_both
def test_events_of_a_thread_that_launches_nothing_are_no_launch_work(attribute: Attribute) -> None:
    trace = TraceBuilder().op("aten::a", 0, 20, thread=OTHER).launch("gemm", 20, 2, 30, 10)
    assert parts(attribute(trace.to_table()))[:2] == [("unattributed", 0, 20), ("host_launch", 20, 22)]


@by_both
def test_a_step_begins_after_the_last_gpu_work_launched_before_it(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 0, 50).step(2, 50, 50)
    trace.launch("gemm", 40, 2, 44, 26).launch("gemm", 60, 2, 75, 15)
    timeline = attribute(trace.to_table())
    assert steps(timeline) == [(1, 0, 70), (2, 70, 100)]
    assert parts(timeline) == [
        ("host_launch", 0, 42),
        ("launch_latency", 42, 44),
        ("compute", 44, 70),
        ("launch_latency", 70, 75),
        ("compute", 75, 90),
        ("host_launch", 90, 100),
    ]


@by_both
def test_work_launched_at_the_very_start_of_a_step_belongs_to_it(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 0, 50).step(2, 50, 50).launch("gemm", 50, 2, 55, 20)
    assert steps(attribute(trace.to_table())) == [(1, 0, 50), (2, 50, 100)]


@by_both
def test_the_lead_in_lasts_until_the_work_from_before_the_recording_ends(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 100, 100).kernel("gemm", 90, 40).launch("gemm", 110, 2, 140, 10)
    timeline = attribute(trace.to_table())
    assert lead_in(timeline) == (100, 130)
    assert parts(timeline) == [
        ("compute", 100, 130),
        ("launch_latency", 130, 140),
        ("compute", 140, 150),
        ("host_launch", 150, 200),
    ]


@by_both
def test_idle_in_the_lead_in_is_unattributed_whatever_the_host_does(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 100, 100).kernel("gemm", 90, 20).kernel("gemm", 120, 10)
    trace.data_loading(105, 13).launch("gemm", 140, 5, 150, 10)
    timeline = attribute(trace.to_table())
    assert lead_in(timeline) == (100, 130)
    assert parts(timeline) == [
        ("compute", 100, 110),
        ("unattributed", 110, 120),
        ("compute", 120, 130),
        ("host_launch", 130, 145),
        ("launch_latency", 145, 150),
        ("compute", 150, 160),
        ("host_launch", 160, 200),
    ]


@by_both
def test_work_launched_before_the_first_step_makes_a_lead_in(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 100, 50).launch("gemm", 80, 5, 95, 25)
    timeline = attribute(trace.to_table())
    assert lead_in(timeline) == (100, 120)
    assert steps(timeline) == [(1, 120, 150)]
    assert parts(timeline) == [("compute", 100, 120), ("host_launch", 120, 150)]


@by_both
def test_work_before_the_window_is_cut_off(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 100, 50).launch("gemm", 5, 1, 10, 10)
    timeline = attribute(trace.to_table())
    assert lead_in(timeline) == (100, 100)
    assert parts(timeline) == [("host_launch", 100, 150)]


@by_both
def test_a_stream_without_any_launch_ran_from_before_the_recording(attribute: Attribute) -> None:
    trace = one_step(50).launch("gemm", 10, 2, 20, 10).kernel("gemm", 40, 5, stream=9)
    timeline = attribute(trace.to_table())
    assert lead_in(timeline) == (0, 45)
    assert parts(timeline) == [
        ("unattributed", 0, 20),
        ("compute", 20, 30),
        ("unattributed", 30, 40),
        ("compute", 40, 45),
        ("host_launch", 45, 50),
    ]


@by_both
def test_the_first_of_two_steps_of_one_number_counts(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 0, 50).step(1, 50, 50).step(2, 100, 50).op("aten::a", 0, 1)
    assert steps(attribute(trace.to_table())) == [(1, 0, 100), (2, 100, 150)]


@by_both
def test_steps_are_those_of_the_thread_that_has_most(attribute: Attribute) -> None:
    trace = TraceBuilder().step(7, 0, 5, thread=OTHER).step(1, 10, 10).step(2, 20, 10).launch("gemm", 12, 1, 14, 2)
    timeline = attribute(trace.to_table())
    assert steps(timeline) == [(1, 10, 20), (2, 20, 30)]
    assert timeline.window == (10_000, 30_000)


@by_both
def test_steps_of_2021_are_operators_and_a_name_without_a_number_is_no_step(attribute: Attribute) -> None:
    trace = TraceBuilder().op("ProfilerStep#3", 10, 20).annotation("ProfilerStep#x", 0, 90).launch("gemm", 12, 1, 14, 2)
    assert steps(attribute(trace.to_table())) == [(3, 10, 30)]


# --- launches


@by_both
def test_unlinked_work_takes_the_launch_before_it_on_its_stream(attribute: Attribute) -> None:
    trace = one_step(50).launch("gemm", 10, 2, 20, 10).kernel("relu", 40, 10)
    timeline = attribute(trace.to_table())
    assert lead_in(timeline) == (0, 0)
    assert parts(timeline)[2:] == [("compute", 20, 30), ("launch_latency", 30, 40), ("compute", 40, 50)]


@by_both
def test_one_graph_launch_starts_many_kernels(attribute: Attribute) -> None:
    trace = one_step(40).graph_launch(10, 4, [("gemm", 20, 5), ("relu", 30, 5)])
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 14),
        ("launch_latency", 14, 20),
        ("compute", 20, 25),
        ("launch_latency", 25, 30),
        ("compute", 30, 35),
        ("host_launch", 35, 40),
    ]


@by_both
def test_a_launch_that_returns_after_its_kernel_began_leaves_no_latency(attribute: Attribute) -> None:
    trace = one_step(40).launch("gemm", 10, 20, 20, 20)
    assert parts(attribute(trace.to_table())) == [("host_launch", 0, 20), ("compute", 20, 40)]


@by_both
def test_of_works_that_end_a_gap_together_the_last_launched_counts(attribute: Attribute) -> None:
    trace = one_step(40).launch("gemm", 5, 3, 30, 10).launch("relu", 12, 8, 30, 5, stream=9)
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 20),
        ("launch_latency", 20, 30),
        ("compute", 30, 40),
    ]


@by_both
def test_of_two_calls_of_one_correlation_the_earlier_is_the_launch(attribute: Attribute) -> None:
    trace = one_step(40).runtime("cuLaunchKernelEx", 12, 10, correlation=77).kernel("gemm", 30, 10, correlation=77)
    trace.runtime("cudaLaunchKernel", 10, 5, correlation=77)
    assert parts(attribute(trace.to_table()))[:2] == [("host_launch", 0, 15), ("launch_latency", 15, 30)]


@by_both
def test_threads_of_launches_and_of_steps_are_the_launching_threads(attribute: Attribute) -> None:
    trace = TraceBuilder().launch("gemm", 0, 1, 1, 9, thread=AUTOGRAD).op("aten::a", 10, 5, thread=AUTOGRAD)
    trace.op("aten::b", 20, 5, thread=OTHER).launch("gemm", 30, 1, 31, 1)
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 1),
        ("compute", 1, 10),
        ("host_launch", 10, 15),
        ("unattributed", 15, 30),
        ("host_launch", 30, 31),
        ("compute", 31, 32),
    ]


# --- idle: what the host was doing


@by_both
def test_idle_under_the_data_loader_is_data_loading(attribute: Attribute) -> None:
    trace = one_step().data_loading(0, 20).launch("gemm", 25, 5, 40, 20)
    assert parts(attribute(trace.to_table())) == [
        ("data_loading", 0, 20),
        ("host_launch", 20, 30),
        ("launch_latency", 30, 40),
        ("compute", 40, 60),
    ]


@by_both
def test_a_data_loader_of_another_thread_does_not_hold_the_gpu(attribute: Attribute) -> None:
    trace = one_step().data_loading(0, 20, thread=OTHER).launch("gemm", 25, 5, 40, 20)
    assert parts(attribute(trace.to_table()))[0] == ("host_launch", 0, 30)


@by_both
def test_a_python_frame_of_the_data_loader_is_data_loading(attribute: Attribute) -> None:
    trace = one_step().python(PYTHON_LOADER, 5, 10).launch("gemm", 25, 5, 30, 30)
    assert parts(attribute(trace.to_table()))[:3] == [
        ("host_launch", 0, 5),
        ("data_loading", 5, 15),
        ("host_launch", 15, 30),
    ]


@by_both
def test_data_loading_after_the_next_launch_is_launch_latency(attribute: Attribute) -> None:
    trace = one_step().launch("gemm", 5, 3, 40, 20).data_loading(10, 20)
    assert parts(attribute(trace.to_table()))[:2] == [("host_launch", 0, 8), ("launch_latency", 8, 40)]


@by_both
def test_device_allocation_is_allocator_and_pinned_host_allocation_is_not(attribute: Attribute) -> None:
    trace = one_step().malloc(5, 5).runtime("cudaMallocHost", 12, 3).free(20, 5).launch("gemm", 30, 2, 32, 28)
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 5),
        ("allocator", 5, 10),
        ("host_launch", 10, 20),
        ("allocator", 20, 25),
        ("host_launch", 25, 32),
        ("compute", 32, 60),
    ]


@by_both
def test_allocation_by_a_thread_that_launches_nothing_is_no_cause(attribute: Attribute) -> None:
    trace = one_step().malloc(5, 5, thread=OTHER).launch("gemm", 30, 2, 32, 28)
    assert parts(attribute(trace.to_table()))[0] == ("host_launch", 0, 32)


@by_both
def test_a_checkpoint_comes_before_data_loading_and_that_before_the_allocator(attribute: Attribute) -> None:
    trace = one_step().annotation("torch.save", 5, 20).data_loading(20, 10).malloc(10, 2).malloc(28, 5)
    trace.launch("gemm", 40, 2, 42, 18)
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 5),
        ("checkpoint", 5, 25),
        ("data_loading", 25, 30),
        ("allocator", 30, 33),
        ("host_launch", 33, 42),
        ("compute", 42, 60),
    ]


@by_both
def test_a_checkpoint_of_another_thread_is_no_cause(attribute: Attribute) -> None:
    trace = one_step().annotation("dcp.save", 5, 20, thread=OTHER).launch("gemm", 40, 2, 42, 18)
    assert parts(attribute(trace.to_table()))[0] == ("host_launch", 0, 42)


@by_both
def test_a_full_command_buffer_is_launch_latency(attribute: Attribute) -> None:
    trace = one_step().launch("gemm", 5, 20, 30, 30).overhead(10, 10).overhead(0, 2, name="Lazy Function Loading")
    assert parts(attribute(trace.to_table())) == [
        ("host_launch", 0, 10),
        ("launch_latency", 10, 20),
        ("host_launch", 20, 25),
        ("launch_latency", 25, 30),
        ("compute", 30, 60),
    ]


@by_both
def test_idle_up_to_the_windows_end_has_no_next_work(attribute: Attribute) -> None:
    trace = one_step().launch("gemm", 0, 1, 1, 9).data_loading(20, 10)
    assert parts(attribute(trace.to_table()))[2:] == [
        ("host_launch", 10, 20),
        ("data_loading", 20, 30),
        ("host_launch", 30, 60),
    ]


# --- idle after a synchronising call


def synced(start: float, duration: float, **thread: int) -> TraceBuilder:
    """Two kernels, [10, 30) and [45, 60), with a synchronising call."""
    trace = one_step().launch("gemm", 5, 2, 10, 20).launch("gemm", 40, 2, 45, 15)
    return trace.sync("cudaStreamSynchronize", start, duration, **thread)


@by_both
def test_a_gap_that_a_synchronising_call_drained_is_host_sync_to_its_end(attribute: Attribute) -> None:
    assert parts(attribute(synced(8, 24).to_table())) == [
        ("host_launch", 0, 7),
        ("launch_latency", 7, 10),
        ("compute", 10, 30),
        ("host_sync", 30, 45),
        ("compute", 45, 60),
    ]


@by_both
def test_a_call_that_returns_as_the_gpu_drains_is_the_cause(attribute: Attribute) -> None:
    assert ("host_sync", 30, 45) in parts(attribute(synced(8, 22).to_table()))


@pytest.mark.parametrize("span", [(30, 5), (8, 21)], ids=["begins at the gap", "ends before the gap"])
@by_both
def test_a_call_that_is_not_open_as_the_gpu_drains_is_no_cause(attribute: Attribute, span: tuple[int, int]) -> None:
    assert parts(attribute(synced(*span).to_table()))[3:5] == [("host_launch", 30, 42), ("launch_latency", 42, 45)]


@by_both
def test_a_synchronising_call_of_another_thread_is_no_cause(attribute: Attribute) -> None:
    assert ("host_launch", 30, 42) in parts(attribute(synced(8, 24, thread=OTHER).to_table()))


@pytest.mark.parametrize("span", [(25, 25), (15, 30)], ids=["after the step", "out of the step"])
@by_both
def test_a_synchronising_call_outside_the_steps_is_no_cause(attribute: Attribute, span: tuple[int, int]) -> None:
    trace = one_step(20).launch("gemm", 5, 2, 10, 30).launch("gemm", 55, 2, 60, 10)
    trace.sync("cudaDeviceSynchronize", *span)
    open_until = sum(span)
    assert parts(attribute(trace.to_table()))[3:] == [
        ("host_launch", 40, open_until),
        ("unattributed", open_until, 55),
        ("host_launch", 55, 57),
        ("launch_latency", 57, 60),
        ("compute", 60, 70),
    ]


@by_both
def test_without_steps_any_synchronising_call_is_a_cause(attribute: Attribute) -> None:
    trace = TraceBuilder().launch("gemm", 5, 2, 10, 20).launch("gemm", 40, 2, 45, 15)
    trace.sync("cudaEventSynchronize", 8, 24)
    assert ("host_sync", 30, 45) in parts(attribute(trace.to_table()))


@by_both
def test_data_loading_after_a_synchronising_call_is_data_loading(attribute: Attribute) -> None:
    assert parts(attribute(synced(8, 24).data_loading(33, 4).to_table()))[3:6] == [
        ("host_sync", 30, 33),
        ("data_loading", 33, 37),
        ("host_sync", 37, 45),
    ]


@by_both
def test_host_sync_comes_before_a_full_command_buffer(attribute: Attribute) -> None:
    assert ("host_sync", 30, 45) in parts(attribute(synced(8, 24).overhead(33, 4).to_table()))


@pytest.mark.parametrize(
    ("call", "direction", "is_pageable", "synchronises"),
    [
        ("cudaMemcpyAsync", "DtoH", True, True),
        ("cudaMemcpyAsync", "DtoH", False, False),
        ("cudaMemcpyAsync", "HtoD", True, False),
        ("cudaMemcpy", "HtoD", False, True),
        ("hipMemcpyWithStream", "DtoH", False, True),
    ],
)
@by_both
def test_copies_that_synchronise(
    attribute: Attribute, call: str, direction: str, is_pageable: bool, synchronises: bool
) -> None:
    trace = one_step().launch("gemm", 5, 2, 10, 15).launch("gemm", 40, 2, 45, 15)
    trace.copy(
        direction,
        num_bytes=4096,
        pageable=is_pageable,
        call=call,
        launch_at=12,
        launch_duration=20,
        start=25,
        duration=5,
    )
    expected = ("host_sync", 30, 45) if synchronises else ("host_launch", 30, 42)
    assert parts(attribute(trace.to_table()))[3:5] == [("memory_copy", 25, 30), expected]


# --- checkpoints by their signature


def saving(num_bytes: int) -> TraceBuilder:
    """Two copies to pageable memory, [310, 320) and [410, 420), each in its call and its operator."""
    trace = TraceBuilder().step(1, 0, 1000).launch("gemm", 10, 2, 15, 35)
    for begin in (300, 400):
        trace.op("aten::copy_", begin - 5, 30)
        trace.copy(
            "DtoH",
            num_bytes=num_bytes,
            pageable=True,
            launch_at=begin,
            launch_duration=20,
            start=begin + 10,
            duration=10,
        )
    return trace


BEFORE_SAVING = [("host_launch", 0, 12), ("launch_latency", 12, 15), ("compute", 15, 50)]


@by_both
def test_a_burst_of_large_copies_is_a_checkpoint_from_the_launch_before_to_the_next_operator(
    attribute: Attribute,
) -> None:
    trace = saving(40 * MIB).op("aten::add", 700, 10).launch("gemm", 705, 2, 720, 10)
    assert parts(attribute(trace.to_table())) == [
        *BEFORE_SAVING,
        ("checkpoint", 50, 310),
        ("memory_copy", 310, 320),
        ("checkpoint", 320, 410),
        ("memory_copy", 410, 420),
        ("checkpoint", 420, 700),
        ("host_sync", 700, 720),  # the copies' calls drained the queue
        ("compute", 720, 730),
        ("host_launch", 730, 1000),
    ]


@by_both
def test_64_mib_of_copies_are_no_checkpoint(attribute: Attribute) -> None:
    trace = saving(32 * MIB).op("aten::add", 700, 10).launch("gemm", 705, 2, 720, 10)
    assert parts(attribute(trace.to_table())) == [
        *BEFORE_SAVING,
        ("host_launch", 50, 310),
        ("memory_copy", 310, 320),
        ("host_sync", 320, 410),
        ("memory_copy", 410, 420),
        ("host_sync", 420, 720),
        ("compute", 720, 730),
        ("host_launch", 730, 1000),
    ]


@by_both
def test_a_kernel_launched_between_copies_cuts_their_series(attribute: Attribute) -> None:
    trace = saving(40 * MIB).launch("gemm", 350, 2, 360, 5)
    assert "checkpoint" not in attribute(trace.to_table()).part_ns()


@by_both
def test_a_kernel_launched_by_another_thread_does_not_cut_the_series(attribute: Attribute) -> None:
    trace = saving(40 * MIB).launch("gemm", 350, 2, 360, 5, thread=AUTOGRAD)
    assert "checkpoint" in attribute(trace.to_table()).part_ns()


@by_both
def test_a_checkpoint_with_no_operator_after_it_ends_with_its_step(attribute: Attribute) -> None:
    trace = saving(40 * MIB).step(2, 1000, 200).launch("gemm", 1100, 2, 1110, 10)
    assert parts(attribute(trace.to_table()))[7:] == [
        ("checkpoint", 420, 1000),
        ("host_sync", 1000, 1110),
        ("compute", 1110, 1120),
        ("host_launch", 1120, 1200),
    ]


@by_both
def test_operators_nested_in_that_of_the_copy_do_not_end_a_checkpoint(attribute: Attribute) -> None:
    trace = saving(40 * MIB).op("aten::to", 390, 40).op("aten::detach", 426, 2).op("aten::add", 700, 10)
    assert ("checkpoint", 420, 700) in parts(attribute(trace.to_table()))


# --- on the CPU


@by_both
def test_on_the_cpu_operators_of_the_training_threads_are_compute(attribute: Attribute) -> None:
    trace = one_step(100).data_loading(0, 5).op("aten::mm", 10, 20).op("aten::x", 60, 10, thread=4)
    trace.annotation("gloo:all_reduce", 20, 30, thread=OTHER)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 40, 5, thread=AUTOGRAD)
    timeline = attribute(trace.to_table())
    assert parts(timeline) == [
        ("data_loading", 0, 5),
        ("host_launch", 5, 10),
        ("compute", 10, 30),
        ("communication", 30, 40),
        ("compute", 40, 45),
        ("communication", 45, 50),
        ("host_launch", 50, 100),
    ]
    assert lead_in(timeline) == (0, 0)


@by_both
def test_on_the_cpu_without_steps_all_threads_with_operators_train(attribute: Attribute) -> None:
    trace = TraceBuilder().op("aten::mm", 0, 10).annotation("gloo:all_reduce", 20, 10, thread=OTHER)
    trace.op("aten::mm", 40, 10, thread=AUTOGRAD)
    assert parts(attribute(trace.to_table())) == [
        ("compute", 0, 10),
        ("unattributed", 10, 20),
        ("communication", 20, 30),
        ("unattributed", 30, 40),
        ("compute", 40, 50),
    ]


@by_both
def test_on_the_cpu_steps_begin_at_their_host_start(attribute: Attribute) -> None:
    trace = TraceBuilder().step(1, 0, 50).step(2, 60, 40).op("c10d::allreduce_", 10, 10).annotation("torch.save", 30, 5)
    timeline = attribute(trace.to_table())
    assert steps(timeline) == [(1, 0, 60), (2, 60, 100)]
    assert parts(timeline) == [
        ("host_launch", 0, 10),
        ("communication", 10, 20),
        ("host_launch", 20, 30),
        ("checkpoint", 30, 35),
        ("host_launch", 35, 50),
        ("unattributed", 50, 60),
        ("host_launch", 60, 100),
    ]


# --- wait and transfer across ranks


def exposed(*ranks: TraceBuilder) -> list[tuple[float, float]]:
    """(transfer, wait) of each rank in us."""
    split = split_communication([rank.to_table() for rank in ranks])
    return [(split[rank.rank].transfer_ns / 1000, split[rank.rank].wait_ns / 1000) for rank in ranks]


def arriving(rank: int, operation: str, start: float, end: float, root: int | None = None) -> TraceBuilder:
    trace = TraceBuilder(rank=rank).step(1, 0, 100)
    return trace.collective(operation, start - 2, start, end - start, root=root)


def test_the_early_rank_waits_until_the_late_one_has_arrived() -> None:
    assert exposed(arriving(0, "allreduce", 10, 50), arriving(1, "allreduce", 30, 51)) == [(20, 20), (21, 0)]


def test_a_wait_hidden_under_compute_is_not_exposed() -> None:
    early = arriving(0, "allreduce", 10, 50).launch("gemm", 5, 1, 10, 12)
    assert exposed(early, arriving(1, "allreduce", 30, 50)) == [(20, 8), (20, 0)]


def test_a_wait_ends_with_its_own_kernel_at_the_latest() -> None:
    assert exposed(arriving(0, "allreduce", 10, 25), arriving(1, "allreduce", 30, 50)) == [(0, 15), (20, 0)]


def test_the_root_of_a_broadcast_does_not_wait_and_the_others_wait_for_it_only() -> None:
    late_root = [arriving(rank, "broadcast", start, 50, root=1) for rank, start in ((0, 10), (1, 30), (2, 40))]
    assert exposed(*late_root) == [(20, 20), (20, 0), (10, 0)]
    early_root = [arriving(rank, "broadcast", start, 50, root=0) for rank, start in ((0, 10), (1, 30))]
    assert exposed(*early_root) == [(40, 0), (20, 0)]


def test_only_the_root_of_a_reduce_waits_and_for_all() -> None:
    ranks = [arriving(rank, "reduce", start, 50, root=1) for rank, start in ((0, 10), (1, 20), (2, 40))]
    assert exposed(*ranks) == [(40, 0), (10, 20), (10, 0)]


def test_transfer_wins_where_a_wait_and_a_transfer_run_at_once() -> None:
    early = arriving(0, "allreduce", 10, 50).collective("allreduce", 20, 22, 30, stream=27)
    late = arriving(1, "allreduce", 15, 50).collective("allreduce", 38, 40, 20, stream=27)
    # Rank 0: waits [10, 15); the first transfers [15, 50), under it the second waits [22, 40) and transfers [40, 52).
    assert exposed(early, late) == [(37, 5), (45, 0)]


# --- the fast implementation and the oracle


@MANY
@given(traces)
def test_fast_and_oracle_agree(trace: TraceBuilder) -> None:
    table = trace.to_table()
    note(described(table))
    assert fast(table) == oracle.attribute(table)


@settings(MANY, max_examples=100)
@given(trace=traces)
def test_segments_of_the_fast_implementation_are_contiguous_and_sum_to_the_window(trace: TraceBuilder) -> None:
    from flatout.attribute.rank import attribute_rank

    timeline = attribute_rank(trace.to_table())
    start_ns, end_ns, part = columns_of(timeline.segments)
    assert part.dtype == np.uint8
    assert (end_ns > start_ns).all()
    assert (end_ns[:-1] == start_ns[1:]).all()
    assert int((end_ns - start_ns).sum()) == timeline.window_end_ns - timeline.window_start_ns
    if len(start_ns):
        assert (start_ns[0], end_ns[-1]) == (timeline.window_start_ns, timeline.window_end_ns)
    for step, following in zip(timeline.steps, timeline.steps[1:], strict=False):
        assert step.start_ns <= step.end_ns == following.start_ns
    if timeline.steps:
        assert timeline.steps[-1].end_ns == timeline.window_end_ns


@settings(MANY, max_examples=100)
@given(trace=traces)
def test_parts_of_the_oracle_sum_to_the_window(trace: TraceBuilder) -> None:
    timeline = oracle.attribute(trace.to_table())
    assert sum(timeline.part_ns().values()) == timeline.window[1] - timeline.window[0]


@pytest.mark.parametrize("shift_ns", [-7, 1_790_857_026_000_000_123])
@by_both
@settings(MANY, max_examples=60)
@given(trace=traces)
def test_shifting_all_times_shifts_everything(attribute: Attribute, shift_ns: int, trace: TraceBuilder) -> None:
    table = trace.to_table()
    if not has_window(table):
        return
    before = attribute(table)
    after = attribute(msgspec.structs.replace(table, start_ns=table.start_ns + shift_ns))

    def shifted(span: tuple[int, int]) -> tuple[int, int]:
        return span[0] + shift_ns, span[1] + shift_ns

    assert after.window == shifted(before.window)
    assert after.lead_in == shifted(before.lead_in)
    assert [(s.number, s.start, s.end) for s in after.steps] == [
        (s.number, *shifted((s.start, s.end))) for s in before.steps
    ]
    assert after.segments == [(*shifted((start, end)), part) for start, end, part in before.segments]


@by_both
@settings(MANY, max_examples=60)
@given(trace=traces, shuffle=st.randoms(use_true_random=False))
def test_the_order_of_events_and_names_does_not_matter(attribute: Attribute, trace: TraceBuilder, shuffle: Any) -> None:
    table = trace.to_table()
    assert attribute(shuffled(table, shuffle)) == attribute(table)


@by_both
@settings(MANY, max_examples=60)
@given(trace=traces, marks=st.lists(st.tuples(st.booleans(), st.integers(-20, 150), st.integers(0, 90)), min_size=1))
def test_events_that_are_no_work_change_nothing(
    attribute: Attribute, trace: TraceBuilder, marks: list[tuple[bool, int, int]]
) -> None:
    if not trace.to_table().is_kind(*GPU_WORK).any():
        trace.gpu_sync(0, 0)  # the first mark shows that there is a GPU
    before = attribute(trace.to_table())
    for is_sync, start, duration in marks:
        if is_sync:
            trace.gpu_sync(start, duration)
        else:
            trace.gpu_annotation("nccl:all_reduce", start, duration)
    assert attribute(trace.to_table()) == before


@settings(MANY, max_examples=60)
@given(group_traces())
def test_wait_and_transfer_sum_to_the_exposed_communication(ranks: list[TraceBuilder]) -> None:
    tables = [rank.to_table() for rank in ranks]
    for rank, split in split_communication(tables).items():
        whole_ns = oracle.attribute(tables[rank]).part_ns().get("communication", 0)
        assert split.transfer_ns + split.wait_ns == whole_ns


@settings(MANY, max_examples=60)
@given(group_traces())
def test_fast_and_oracle_agree_on_each_rank_of_a_group(ranks: list[TraceBuilder]) -> None:
    for rank in ranks:
        table = rank.to_table()
        note(described(table))
        assert fast(table) == oracle.attribute(table)


def described(table: EventTable) -> str:
    """One line an event, for the report of a failure."""
    return "\n".join(
        f"{event.kind.name:15} {event.name[:50]:50} [{event.start / 1000:g}, {event.end / 1000:g}) "
        f"thread or stream {event.thread} correlation {event.correlation} bytes {event.num_bytes}"
        for event in oracle.Rank(table).events
    )


def has_window(table: EventTable) -> bool:
    return not set(np.unique(table.kind)) <= {Kind.GPU_ANNOTATION, Kind.SYNC, Kind.OVERHEAD}


def shuffled(table: EventTable, shuffle: Any) -> EventTable:
    """The same events, those of equal start and duration in another order, and the dictionaries in another order."""
    order = list(range(table.num_events))
    shuffle.shuffle(order)
    order.sort(key=lambda i: (int(table.start_ns[i]), -int(table.duration_ns[i])))
    columns = {column: getattr(table, column)[order] for column in COLUMNS}
    dictionaries = {}
    for column, dictionary in (("name", "names"), ("thread", "threads")):
        values = getattr(table, dictionary)
        places = list(range(len(values)))
        shuffle.shuffle(places)
        dictionaries[dictionary] = tuple(values[place] for place in places)
        columns[column] = np.array([places.index(int(code)) for code in columns[column]], dtype=COLUMNS[column])
    return msgspec.structs.replace(table, **columns, **dictionaries)
