"""The GPUs of one process that drives several: each has parts of its own."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import attributed

from flatout.attribute.rank import attribute_rank
from flatout.records.diagnosis import PART_NAMES
from flatout.records.job import JobAttribution
from flatout.testing import TraceBuilder


def parts_us(job: JobAttribution, rank: int, device: int) -> dict[str, float]:
    segments = job.device_segments[rank][device]
    total = segments.between_ns(int(segments.start_ns[0]), int(segments.end_ns[-1]))
    return {PART_NAMES[part]: ns / 1000 for part, ns in enumerate(total.tolist()) if ns}


def in_turn() -> TraceBuilder:
    """GPU 0 computes from 10 to 400 us, GPU 1 from 410 to 600, and the host launches nothing until 1000."""
    trace = TraceBuilder(0, 1).step(5, 0, 1000)
    trace.launch("gemm", 0, 5, 10, 390)
    return trace.on_device(1).launch("gemm", 6, 4, 410, 190)


def test_a_gpu_waits_while_another_one_of_its_process_works() -> None:
    job = attributed(in_turn())
    assert parts_us(job, 0, 0) == {"compute": 390, "wait": 190, "host_launch": 405, "launch_latency": 15}
    assert parts_us(job, 0, 1) == {"compute": 190, "wait": 390, "host_launch": 405, "launch_latency": 15}


def test_the_parts_of_a_rank_are_the_mean_over_its_gpus_and_sum_to_its_window() -> None:
    job = attributed(in_turn())
    mean = dict(zip(PART_NAMES, (job.parts_between_ns(0, 0, 1_000_000) / 1000).tolist(), strict=True))
    assert mean["compute"] == mean["wait"] == 290
    assert sum(mean.values()) == 1000


def test_communication_is_hidden_by_the_compute_of_its_own_gpu_alone() -> None:
    trace = TraceBuilder(0, 1).step(5, 0, 1000).launch("gemm", 0, 5, 10, 500)
    trace.on_device(1).launch("ncclKernel_Broadcast(x)", 6, 4, 10, 300, stream=19)
    job = attributed(trace)
    assert parts_us(job, 0, 0)["compute"] == 500
    assert parts_us(job, 0, 1)["communication_unsplit"] == 300
    assert parts_us(job, 0, 1)["wait"] == 200


@pytest.mark.parametrize(("duration", "num_devices"), [(9, 0), (9.01, 2)])
def test_a_gpu_with_a_hundredth_of_the_work_is_not_driven(duration: float, num_devices: int) -> None:
    """A context on GPU 0, or a loss that is copied there."""
    trace = TraceBuilder(1, 1).step(5, 0, 1000).launch("gemm", 0, 5, 10, 900)
    trace.on_device(0).launch("fill", 6, 4, 20, duration)
    (timeline,) = attributed(trace).timelines
    assert len(timeline.devices) == num_devices


def test_one_gpu_or_none_has_no_devices() -> None:
    one = TraceBuilder(3, 4).step(5, 0, 1000).launch("gemm", 0, 5, 10, 900)
    none = TraceBuilder(0, 1).step(5, 0, 1000).op("aten::mm", 0, 900)
    for trace in (one, none):
        job = attributed(trace)
        assert not job.device_segments and not job.timelines[0].devices


def test_the_gpus_of_a_rank_move_with_its_clock() -> None:
    """Two ranks with two GPUs each; the clock of rank 1 is 5 ms late."""
    traces = []
    for rank, clock in ((0, 0), (1, 5000)):
        trace = TraceBuilder(rank, 2)
        for number in range(3):
            at = 1000 * number + clock
            trace.on_device(2 * rank).step(number + 5, at, 1000).launch("gemm", at, 5, at + 10, 300)
            trace.on_device(2 * rank + 1).launch("gemm", at + 6, 4, at + 320, 300)
            trace.collective("allreduce", at + 11, at + 700, 200)
        traces.append(trace)
    job = attributed(*traces)
    assert job.clock_offset_ns == {0: 0, 1: -5_000_000}
    assert [int(segments.start_ns[0]) for segments in job.device_segments[1].values()] == [0, 0]
    assert parts_us(job, 0, 0) == parts_us(job, 1, 2)
    assert parts_us(job, 1, 3)["transfer"] == 600


def test_gpu_times_of_a_rank_are_the_mean_over_its_gpus() -> None:
    """Two GPUs that multiply matrices at once for 900 of 1000 us: 900 us, not 1800."""
    trace = TraceBuilder(0, 1).step(5, 0, 1000)
    for device in (0, 1):
        trace.on_device(device).launch("volta_sgemm_128x64_nn", 5 * device, 4, 20, 900)
    facts = attributed(trace).timelines[0].facts
    assert facts is not None
    assert facts.matmul_s == facts.plain_matmul_s == pytest.approx(900e-6)


def test_streams_of_two_gpus_with_one_number_are_two_streams_for_a_replay() -> None:
    timeline = attribute_rank(in_turn().to_table(), with_track=True)
    assert timeline.track is not None
    assert len(set(timeline.track.stream.tolist())) == 2


def test_matrix_products_on_two_streams_of_a_gpu_count_once() -> None:
    trace = TraceBuilder(0, 1).step(5, 0, 1000)
    for stream in (7, 8):
        trace.launch("volta_sgemm_128x64_nn", stream, 1, 20, 900, stream=stream)
    facts = attributed(trace).timelines[0].facts
    assert facts is not None
    assert facts.matmul_s == pytest.approx(900e-6)
