"""A trace without GPU events is that of a job on the CPU only if nothing in it speaks of a GPU."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.diagnose.jobs import diagnosed, names

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.diagnose.find import diagnose
from flatout.records.diagnosis import Part
from flatout.records.events import EventTable
from flatout.records.timeline import RankTimeline
from flatout.report.phrases import job_summary
from flatout.testing import TraceBuilder


def host(rank: int = 0) -> TraceBuilder:
    trace = TraceBuilder(rank, 2)
    for number in (5, 6, 7):
        at = 1000 * number
        trace.step(number, at, 1000).data_loading(at, 100).op("aten::mm", at + 200, 500)
    return trace


def timeline_of(trace: TraceBuilder, **meta: object) -> RankTimeline:
    table = trace.to_table()
    return attribute_rank(msgspec.structs.replace(table, meta=msgspec.structs.replace(table.meta, **meta)))


SIGNS: dict[str, tuple[Callable[[TraceBuilder], object], dict[str, object]]] = {
    "collectives": (lambda trace: trace.annotation("nccl:all_reduce", 5800, 50), {}),
    "rccl": (lambda trace: trace.annotation("rccl:all_reduce", 5800, 50), {}),
    "backend": (lambda trace: None, {"backend": "nccl"}),
    "backend of a device": (lambda trace: None, {"backend": "cuda:nccl"}),
    "launch": (lambda trace: trace.runtime("cudaLaunchKernel", 5800, 50), {}),
    "runtime": (lambda trace: trace.sync("cudaStreamSynchronize", 5800, 50), {}),
    "operator": (lambda trace: trace.op("aten::cudnn_convolution", 5800, 50), {}),
    "timeline": (lambda trace: trace.gpu_annotation("ProfilerStep#5", 5800, 50), {}),
    "devices": (lambda trace: None, {"num_devices": 8, "backend": None}),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_what_speaks_of_a_gpu_makes_the_device_unknown(sign: str) -> None:
    add, meta = SIGNS[sign]
    trace = host()
    add(trace)
    timeline = timeline_of(trace, **{"backend": None, **meta})
    assert not timeline.is_device_known and not timeline.has_gpu
    spent = timeline.segments.between_ns(timeline.window_start_ns, timeline.window_end_ns)
    assert spent[Part.DATA_LOADING] == 300_000
    assert spent[Part.UNATTRIBUTED] == 2_700_000
    assert timeline.communication.num_kernels == 0
    (note,) = timeline.quality
    assert note.problem.startswith("the trace has no GPU events, but ")
    assert note.max_confidence == "inconclusive"


@pytest.mark.parametrize(
    ("add", "meta"),
    [
        (lambda trace: None, {"backend": "gloo"}),
        (lambda trace: None, {"backend": None}),
        (lambda trace: trace.annotation("gloo:all_reduce", 5800, 50), {"backend": "cpu:gloo,cuda:nccl"}),
        (lambda trace: trace.annotation("gloo:all_reduce", 5800, 50), {"backend": "gloo", "num_devices": 8}),
        (lambda trace: trace.annotation("gloo:all_reduce", 5800, 50).sync("cudaDeviceSynchronize", 5900, 5), {}),
        (lambda trace: None, {"backend": "cpu:gloo,cuda:nccl"}),
    ],
)
def test_a_job_on_the_cpu_stays_one(add: Callable[[TraceBuilder], object], meta: dict[str, object]) -> None:
    trace = host()
    add(trace)
    timeline = timeline_of(trace, **meta)
    assert timeline.is_device_known
    assert timeline.segments.between_ns(timeline.window_start_ns, timeline.window_end_ns)[Part.COMPUTE] == 1_500_000


def test_no_finding_is_sure_and_the_report_says_that_the_device_is_unknown() -> None:
    traces = [host(rank).annotation("nccl:all_reduce", 5800, 50) for rank in (0, 1)]
    diagnosis = diagnosed(*traces)
    assert diagnosis.job.ranks_of_unknown_device == (0, 1)
    assert "device unknown" in job_summary(diagnosis)
    assert names(diagnosis) == ["data-loading"]
    assert {finding.confidence for finding in diagnosis.findings} == {"inconclusive"}


def test_one_rank_without_gpu_events_leaves_the_other_ones_as_they_are() -> None:
    seen = TraceBuilder(0).step(5, 0, 1000).launch("gemm", 0, 5, 10, 900)
    unseen = TraceBuilder(1).step(5, 0, 1000).annotation("nccl:all_reduce", 10, 5)
    diagnosis = diagnose(attribute_job([attribute_rank(table) for table in _tables(seen, unseen)]))
    assert diagnosis.job.ranks_of_unknown_device == (1,)
    assert diagnosis.job.device == "NVIDIA H200"
    assert diagnosis.ranks[0].parts_s["compute"] == pytest.approx(900e-6)


def _tables(*traces: TraceBuilder) -> list[EventTable]:
    return [trace.to_table() for trace in traces]
