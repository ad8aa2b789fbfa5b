"""The misdiagnoses that Megatron-Bridge's guide to Nsight Systems warns of: one small job for each that can occur here.

The list is `skills/nemo-mbridge-perf-nsys-analysis/references/pitfalls.md` of NVIDIA-NeMo/Megatron-Bridge: 32 points in
its version of 2026-08-22. `docs/concepts/misdiagnoses.md` has one row for each point, and names these tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.diagnose.jobs import GEMM, STEP, attributed, costs_us, diagnosed, found, names, parts_us, times
from tests.diagnose.jobs import free_of_recorder_cost as diagnosis_of
from tests.read import sqlite_files

from flatout.attribute.rank import attribute_rank
from flatout.read import TraceSource, read_trace
from flatout.records.diagnosis import Diagnosis
from flatout.records.events import EventTable
from flatout.testing import TraceBuilder

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "misdiagnoses.md"
MIB = 1 << 20


def problems(diagnosis: Diagnosis) -> str:
    return "; ".join(note.problem for note in diagnosis.data_quality)


def read(path: Path) -> EventTable:
    return read_trace(TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size))


def alone(num_steps: int = 2) -> tuple[TraceBuilder, list[tuple[int, float]]]:
    return TraceBuilder(0, 1), list(times(num_steps))


def test_1_kernels_of_several_streams_count_once() -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP)
        for stream in (7, 8, 9):
            trace.launch(GEMM, at, 1, at + 10, 6000, stream=stream)
        trace.launch(GEMM, at + 2, 1, at + 6010, STEP - 6010)
    assert parts_us(attributed(trace), 0)["compute"] == pytest.approx(2 * (STEP - 10))


def test_2_the_step_is_that_of_the_marks_and_not_of_the_busiest_stream() -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP).launch(GEMM, at, 1, at + 1, 4000)
        trace.python("log", at + 2, 5000).launch(GEMM, at + 9000, 5, at + 9005, 100)
    diagnosis = diagnosis_of(trace)
    assert diagnosis.ranks[0].step_s == pytest.approx(STEP * 1e-6, rel=0.1)
    assert diagnosis.ranks[0].parts_s["compute"] < 0.5 * diagnosis.ranks[0].window_s


def late_by_compute(*extra: float, kernels: tuple[int, ...] | None = None) -> list[TraceBuilder]:
    """Each rank computes 2000 us and its extra, in one or several kernels, and then meets the others."""
    traces = [TraceBuilder(rank, len(extra)) for rank in range(len(extra))]
    met = 2005 + max(extra)
    for trace, more, count in zip(traces, extra, kernels or (1,) * len(extra), strict=True):
        for number, at in times(3):
            trace.step(number, at, STEP)
            length = (2000 + more) / count
            for kernel in range(count):
                trace.launch(GEMM, at + kernel, 1, at + 5 + kernel * length, length)
            trace.collective("allreduce", at + count + 5, at + 2005 + more, met - 2005 - more + 20)
            trace.launch(GEMM, at + count + 6, 1, at + met + 20, STEP - met - 20)
    return traces


def test_3_the_cause_is_on_the_late_rank_and_rank_0_only_waits() -> None:
    diagnosis = diagnosis_of(*late_by_compute(0, 0, 3000, 0))
    assert found(diagnosis, "straggler").ranks == (2,)
    assert diagnosis.ranks[0].parts_s["wait"] == pytest.approx(3 * 3000e-6)
    assert diagnosis.ranks[2].parts_s["wait"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("kernels", "is_other_work"), [((20, 20), False), ((20, 21), False), ((20, 22), True)])
def test_4_a_rank_with_other_kernels_does_other_work(kernels: tuple[int, int], is_other_work: bool) -> None:
    finding = found(diagnosis_of(*late_by_compute(0, 3000, kernels=kernels)), "straggler")
    assert ("other work, not a slower GPU" in finding.title) == is_other_work
    assert ("in addition to the others' work" in finding.changes[0]) == is_other_work
    assert finding.evidence["kernels_per_step"] - finding.evidence["kernels_per_step_of_others"] == np.diff(kernels)


BACKENDS = (
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
    "void deep_ep::internode::combine<true>",
    "void hybrid_ep::dispatch_kernel<16>(int4*)",
    "void hybrid_ep::combine_kernel<16>(int4*)",
    "nvshmemi_transfer_rma_ibgda",
    "mscclpp::allreduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel",
)


@pytest.mark.parametrize("kernel", BACKENDS)
def test_5_and_6_kernels_of_other_libraries_communicate_and_are_not_called_transfer(kernel: str) -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 6000)
        trace.launch(kernel, at + 6, 1, at + 6005, 2000).launch(GEMM, at + 7, 1, at + 8005, STEP - 8005)
    spent = parts_us(attributed(trace), 0)
    assert spent["communication_unsplit"] == pytest.approx(2 * 2000)
    assert "transfer" not in spent
    finding = found(diagnosis_of(trace), "exposed-communication")
    assert finding.confidence == "inconclusive"
    assert finding.evidence["bus_bandwidth_bytes_per_s"] is None


def host_late_after(collective: float, launch_at: float, *, waits: bool = False) -> list[TraceBuilder]:
    """An all-reduce from 2005 us on in the open; the host launches the rest of the step at `launch_at`."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace in traces:
        for number, at in times(3):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 2000)
            trace.collective("allreduce", at + 6, at + 2005, collective)
            if waits:
                trace.sync("cudaStreamSynchronize", at + 20, collective + 1990)
            begin = max(launch_at + 5, 2005 + collective)
            trace.launch(GEMM, at + launch_at, 5, at + begin, STEP - begin)
    return traces


# 3000 us of it in the open, until 5005. What follows is launched at 7000, at 5060, at 5800, at 3005, or at 10.
@pytest.mark.parametrize(
    ("launch_at", "waits", "cost"),
    [
        (7000, False, 0),
        (7000, True, 3000),
        (5700, False, 3000),
        (5800, False, 0),
        (3005, False, 2000),
        (10, False, 3000),
    ],
)
def test_7_communication_with_nothing_behind_it_costs_nothing(launch_at: float, waits: bool, cost: float) -> None:
    diagnosis = diagnosis_of(*host_late_after(3000, launch_at, waits=waits))
    assert costs_us(diagnosis).get("exposed-communication", 0) == pytest.approx(cost, rel=0.01)
    if launch_at == 7000 and not waits:
        assert names(diagnosis) == ["host-bound"]


def test_8_a_wait_is_charged_to_what_made_the_rank_late_and_not_to_what_runs_meanwhile() -> None:
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, load in zip(traces, (0, 3000), strict=True):
        for number, at in times(3):
            trace.step(number, at, STEP).data_loading(at, load)
            trace.launch(GEMM, at + load, 5, at + load + 5, 4000)  # while rank 0 waits, rank 1 computes
            trace.collective("allreduce", at + load + 5, at + load + 4005, 3020 - load)
            trace.launch(GEMM, at + load + 6, 1, at + 7025, STEP - 7025)
    assert names(diagnosis_of(*traces)) == ["data-loading"]


def test_11_a_host_that_waits_for_a_busy_gpu_stalls_nothing() -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 25)
        trace.sync("cudaStreamSynchronize", at + 10, STEP - 40)
    assert costs_us(diagnosis_of(trace)) == {}


def test_12_a_copy_has_its_direction_size_and_memory_and_costs_nothing_where_it_is_hidden() -> None:
    exposed, hidden = TraceBuilder(0, 1), TraceBuilder(0, 1)
    for number, at in times(2):
        copy = {"num_bytes": 96 * MIB, "launch_at": at, "duration": 2000.0}
        exposed.step(number, at, STEP).copy("HtoD", start=at, **copy)  # type: ignore[arg-type]
        exposed.launch(GEMM, at + 2, 1, at + 2000, STEP - 2000)
        hidden.step(number, at, STEP).launch(GEMM, at, 1, at + 1, STEP - 1)
        hidden.copy("HtoD", start=at + 100, stream=20, **copy)  # type: ignore[arg-type]
    evidence = found(diagnosis_of(exposed), "memory-copy").evidence
    assert evidence["bytes_per_step"] == {"HtoD": 96 * MIB}
    assert evidence["pageable_bytes_per_step"] == 0
    assert costs_us(diagnosis_of(hidden)) == {}


def test_13_an_asynchronous_copy_of_pageable_memory_blocks_the_host() -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP)
        trace.copy("HtoD", num_bytes=MIB, launch_at=at, launch_duration=3000, start=at, duration=3000, pageable=True)
        trace.launch(GEMM, at + 3000, 5, at + 3005, STEP - 3005)
    finding = found(diagnosis_of(trace), "memory-copy")
    assert finding.evidence["host_blocked_s"] == pytest.approx(3000e-6)


def test_18_what_was_not_recorded_is_unknown_and_not_zero() -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP).launch(GEMM, at, 1, at + 10, 3990)
        trace.launch("ncclDevKernel_AllReduce", at + 2, 1, at + 4000, 3000).launch(GEMM, at + 4, 1, at + 7000, 3000)
    evidence = found(diagnosis_of(trace), "exposed-communication").evidence
    assert evidence["exposed_transfer_s"] is None
    assert evidence["bus_bandwidth_bytes_per_s"] is None
    assert evidence["hidden_share"] is None


def test_19_an_export_without_metrics_is_diagnosed_by_its_times(tmp_path: Path) -> None:
    tables = sqlite_files.nsys_tables()
    assert not any("METRIC" in table for table in tables)
    path = tmp_path / "trace.sqlite"
    path.write_bytes(sqlite_files.database(tables))
    table = read(path)
    assert len(attribute_rank(table).steps) == 3
    assert any("Nsight Systems warns: 12 events were lost" in note.problem for note in table.quality)  # 27


@pytest.mark.parametrize(
    "kernel",
    ["triton_red_fused_all_gather_matmul_0", "fused_allgather_gemm_kernel", "void scatter_reduce_kernel<float>"],
)
def test_20_fused_and_unknown_kernels_stay_compute(kernel: str) -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP).launch(kernel, at, 5, at + 5, STEP - 5)
    assert set(parts_us(attributed(trace), 0)) <= {"compute", "host_launch", "launch_latency"}


def test_21_kernels_of_a_graph_have_one_launch_and_are_not_bound_by_the_host() -> None:
    trace, steps = alone(3)
    for number, at in steps:
        kernels = [(GEMM, at + 10 + 100 * i, 100.0) for i in range(99)]
        trace.step(number, at, STEP).graph_launch(at, 8, kernels)
    diagnosis = diagnosis_of(trace)
    assert names(diagnosis) == []
    assert "no GPU event has a launching call" not in problems(diagnosis)


def test_22_kernels_without_operators_are_attributed_by_their_launches_alone() -> None:
    trace, steps = alone()
    for number, at in steps:
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 4000).python("train.py(3): log", at + 10, 4990)
        trace.sync("cudaStreamSynchronize", at + 5000, 10)
        trace.launch(GEMM, at + 6000, 5, at + 6005, STEP - 6005)
    (finding,) = diagnosis_of(trace).findings
    assert finding.name in ("host-bound", "host-sync")
    assert "aten::" not in finding.title


def test_23_a_clock_that_is_off_is_aligned_by_the_ends_of_collectives_and_said() -> None:
    traces = late_by_compute(0, 0)
    shifted = TraceBuilder(1, base_ns=5_000_000)
    shifted._events = traces[1]._events
    diagnosis = diagnosis_of(traces[0], shifted)
    assert names(diagnosis) == []
    assert "clock" in problems(diagnosis)


def test_24_without_all_ranks_no_rank_is_called_the_straggler_of_the_job() -> None:
    traces = [TraceBuilder(rank, 4) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(3):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 2000)
            trace.collective("allreduce", at + 6, at + 2005, 3000, group_ranks=(0, 1, 2, 3))
            trace.launch(GEMM, at + 7, 1, at + 5005, STEP - 5005)
    diagnosis = diagnosis_of(*traces)
    assert diagnosis.job.missing_ranks == (2, 3)
    assert [(f.name, f.confidence) for f in diagnosis.findings] == [("exposed-communication", "inconclusive")]
    assert "2 of 4 ranks have no trace here" in problems(diagnosis)


def test_25_costs_on_the_host_are_those_without_the_recorder() -> None:
    trace, steps = alone(3)
    for number, at in steps:
        trace.step(number, at, STEP)
        for event in range(400):
            trace.op("aten::add", at + event * 15, 10)
        trace.launch(GEMM, at + 6000, 5, at + 6005, STEP - 6005)
    traced = found(diagnosed(trace, untraced_step_us=STEP), "host-bound").cost_s_per_step
    without = found(diagnosed(trace, untraced_step_us=STEP - 2000), "host-bound").cost_s_per_step
    assert traced == pytest.approx(6000e-6, rel=0.01)
    assert without == pytest.approx(4000e-6, rel=0.01)


def test_26_a_last_mark_that_outlasts_the_recording_is_no_step(tmp_path: Path) -> None:
    trace, steps = alone(4)
    for number, at in steps:
        is_last = number == steps[-1][0]
        trace.step(number, at, 400 * STEP if is_last else STEP).launch(GEMM, at, 5, at + 5, STEP - 5)
    table = read(trace.write(tmp_path / "rank0.json"))
    spans_us = [(step.end_ns - step.start_ns) / 1000 for step in attribute_rank(table).steps]
    assert spans_us == pytest.approx([STEP] * 4, rel=0.01)


def test_28_loading_between_two_marks_belongs_to_a_step_and_is_not_lost() -> None:
    trace, steps = alone(4)
    for number, at in steps:
        trace.data_loading(at, 3000).step(number, at + 3000, STEP - 3000)
        trace.launch(GEMM, at + 3000, 5, at + 3005, STEP - 3005)
    rank = diagnosis_of(trace).ranks[0]
    assert rank.parts_s["data_loading"] == pytest.approx(3 * 3000e-6)  # before the first mark there is no step


def test_31_costs_of_several_findings_share_no_second() -> None:
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, load in zip(traces, (1000, 3000), strict=True):
        for number, at in times(3):
            trace.step(number, at, STEP).data_loading(at, load)
            trace.copy("HtoD", num_bytes=MIB, launch_at=at + load, start=at + load + 1, duration=500)
            trace.launch(GEMM, at + load + 2, 5, at + load + 501, 1500)
            trace.collective("allreduce", at + load + 8, at + load + 2001, 4000 - load)
            trace.sync("cudaStreamSynchronize", at + load + 20, 6001 - load - 20)
            trace.launch(GEMM, at + 7000, 5, at + 7005, STEP - 7005)
    diagnosis = diagnosis_of(*traces)
    assert len(diagnosis.findings) >= 3
    assert sum(finding.cost_s_per_step for finding in diagnosis.findings) <= (7005 - 1500) * 1e-6


def test_32_a_rank_that_is_late_for_no_visible_reason_has_the_cause_unknown() -> None:
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, late in zip(traces, (0, 3000), strict=True):
        trace.step(1, late, STEP - late).launch(GEMM, late, 5, late + 5, 2000)
        trace.collective("allreduce", late + 5, late + 2005, 3020 - late).launch(GEMM, late + 6, 1, 5025, STEP - 5025)
    finding = found(diagnosis_of(*traces), "straggler")
    assert (finding.evidence["cause"], finding.confidence) == ("unknown", "inconclusive")


def test_each_point_of_the_list_has_a_row_that_names_its_test_or_says_why_there_is_none() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 33))
    tests = Path(__file__).parents[1]
    for number, place in rows:
        if place.strip().startswith("does not apply"):
            continue
        file, _, test = place.strip().strip("`").partition("::")
        assert f"def {test}(" in (tests / file).read_text(), f"{number}: {place}"
