"""Launches of which the trace has no kernel: the profiler lost it, and what the GPU did there is unknown."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import diagnosed, names

from flatout.attribute.rank import attribute_rank
from flatout.records.diagnosis import PART_NAMES
from flatout.records.timeline import RankTimeline
from flatout.testing import TraceBuilder


def kernels(num: int, *, lost: set[int] = frozenset(), trace: TraceBuilder | None = None) -> TraceBuilder:  # type: ignore[assignment]
    """Kernels of 90 us, each 100 us after the one before, launched 5 us before they start; some are lost."""
    trace = trace or TraceBuilder(0, 1)
    trace.step(5, 0, 100 * num)
    for number in range(num):
        at = 100 * number
        if number in lost:
            trace.runtime("cudaLaunchKernel", at, 3)
        else:
            trace.launch("gemm", at, 3, at + 5, 90)
    return trace


def parts_us(timeline: RankTimeline) -> dict[str, float]:
    total = timeline.segments.between_ns(timeline.window_start_ns, timeline.window_end_ns)
    return {PART_NAMES[part]: ns / 1000 for part, ns in enumerate(total.tolist()) if ns}


def test_the_gap_of_a_lost_kernel_is_unattributed_from_its_launch_on() -> None:
    """Kernel 1 is lost: the GPU is idle, as far as the trace shows, from 95 to 205; at 100 the lost one is launched."""
    parts = parts_us(attribute_rank(kernels(3, lost={1}).to_table()))
    assert parts["unattributed"] == 105
    assert parts["compute"] == 180


def test_gaps_without_a_lost_kernel_keep_their_cause() -> None:
    """The last of ten kernels is lost: 5 us before the first, eight gaps of 10, and 5 until the last launch."""
    parts = parts_us(attribute_rank(kernels(10, lost={9}).to_table()))
    assert parts["host_launch"] + parts["launch_latency"] == 5 + 8 * 10 + 5
    assert parts["unattributed"] == 100
    assert "unattributed" not in parts_us(attribute_rank(kernels(10).to_table()))


def test_half_of_the_kernels_lost_is_not_host_bound() -> None:
    lost = diagnosed(kernels(100, lost=set(range(0, 100, 2))))
    assert "host-bound" not in names(lost)
    (note,) = [note for note in lost.data_quality if "have no kernel" in note.problem]
    assert note.problem == "50 of 100 launches (50 %) have no kernel in the trace: the profiler lost them"
    assert note.max_confidence == "inconclusive"


@pytest.mark.parametrize(
    ("num_lost", "limit"), [(0, "-"), (1, None), (9, None), (10, "medium"), (49, "medium"), (50, "inconclusive")]
)
def test_the_share_of_lost_kernels_limits_the_confidence(num_lost: int, limit: str | None) -> None:
    timeline = attribute_rank(kernels(1000, lost=set(range(num_lost))).to_table())
    limits = [note.max_confidence for note in timeline.quality if "have no kernel" in note.problem]
    assert limits == ([] if limit == "-" else [limit])


def test_a_launch_while_a_graph_is_captured_starts_no_kernel() -> None:
    trace = kernels(4)
    trace.runtime("cudaStreamBeginCapture", 401, 1).runtime("cudaLaunchKernel", 403, 1)
    trace.runtime("cudaStreamEndCapture", 405, 1)
    assert not attribute_rank(trace.to_table()).quality
    trace.runtime("cudaLaunchKernel", 407, 1)
    assert "1 of 5 launches" in attribute_rank(trace.to_table()).quality[0].problem


def test_a_driver_call_inside_a_launch_is_the_same_launch() -> None:
    trace = kernels(4).runtime("cuLaunchKernel", 101, 1)
    assert not attribute_rank(trace.to_table()).quality


def test_a_lost_kernel_on_one_rank_does_not_touch_the_confidence_of_another() -> None:
    """Rank 1 alone is host-bound, and its trace is complete."""
    traces = [kernels(100, lost=set(range(50)), trace=TraceBuilder(0)), TraceBuilder(1).step(5, 0, 10_000)]
    for number in range(100):
        traces[1].launch("gemm", 100 * number + 50, 3, 100 * number + 55, 40)
    finding = next(finding for finding in diagnosed(*traces).findings if finding.name == "host-bound")
    assert (finding.ranks, finding.confidence) == ((1,), "medium")
