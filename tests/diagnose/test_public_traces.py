"""Traces of other people: of several vendors and ages, some of one rank of many."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.conftest import Diagnose
from tests.diagnose.jobs import found, names, total_cost_s

from flatout.records.diagnosis import PART_NAMES

DLRM = "param_dlrm_8xV100/dlrm_kineto.tar.gz"
LOADERS = {n: f"kineto_resnet50/num_workers_{n}.pt.trace.json.gz" for n in (0, 4)}
SAMPLED = ("hta/sampled_rank-0.json.gz", "hta/sampled_rank-1.json.gz")
JOBS: dict[str, tuple[str, ...]] = {
    name.rpartition("/")[2].partition(".")[0]: (name,)
    for name in (
        DLRM,
        *LOADERS.values(),
        *SAMPLED,
        "hta/alexnet_cuda_sync.json.gz",
        "hta/cpu_only.rank-34.json.gz",
        "hta/df_index_resolver.json.gz",
        "hta/distributed_info_not_found.json.gz",
        "hta/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
        "hta/nccl_data.json.gz",
        "hta/ns_resolution.rank-0.json.gz",
        "hta/triton_example.json.gz",
        "tracelens/b200_eager_trace.json.gz",
        "tracelens/h100_Qwen1.5-0.5B.json.gz",
        "tracelens/mi210_gpu_only_trace.json.gz",
        "tracelens/mi300_vllm_decode_graph_execution.json.gz",
    )
} | {"two_of_128_ranks": SAMPLED}


@pytest.mark.parametrize("names_of_files", JOBS.values(), ids=JOBS)
def test_any_trace_gets_a_diagnosis_whose_parts_sum_to_the_window(
    public: Diagnose, names_of_files: tuple[str, ...]
) -> None:
    diagnosis = public(*names_of_files).diagnosis
    assert diagnosis.ranks
    for rank in diagnosis.ranks:
        assert rank.window_s > 0
        assert tuple(rank.parts_s) == PART_NAMES
        assert min(rank.parts_s.values()) >= 0
        assert sum(rank.parts_s.values()) == pytest.approx(rank.window_s, abs=1e-6)
        for step in rank.steps:
            assert sum(step.parts_s.values()) == pytest.approx(step.window_s, abs=1e-6)
    case_s = diagnosis.job.step_s or float(np.mean([rank.window_s for rank in diagnosis.ranks]))
    assert total_cost_s(diagnosis.findings) <= case_s * (1 + 1e-9)


# --- eight ranks of one step


def test_dlrm_rank_7_is_late_but_a_single_step_does_not_tell_why(public: Diagnose) -> None:
    diagnosis = public(DLRM).diagnosis
    finding = found(diagnosis, "straggler")
    assert finding.ranks == (7,)
    assert finding.confidence == "inconclusive"
    assert finding.evidence["cause"] == "unknown"
    assert finding.evidence["last_in_collectives"] == 5
    assert finding.evidence["num_collectives"] == 8
    assert finding.evidence["step_start_spread_s"] == pytest.approx(7513e-6)
    assert "inconclusive" in finding.title


def test_dlrm_last_arrivals_and_waits_are_those_counted_elsewhere(public: Diagnose) -> None:
    job = public(DLRM).job
    communication = {timeline.rank: timeline.communication for timeline in job.timelines}
    last = []
    for match in job.matches:
        assert match.is_complete
        starts = {rank: int(communication[rank].start_ns[kernel]) for rank, kernel in match.kernels.items()}
        ends = [int(communication[rank].end_ns[kernel]) for rank, kernel in match.kernels.items()]
        last.append(max(starts, key=lambda rank: starts[rank]))
        assert max(ends) - min(ends) <= 7_000
    assert {rank: last.count(rank) for rank in set(last)} == {7: 5, 5: 2, 4: 1}
    waited_us = {
        rank: int((job.arrivals[rank].until_ns - kernels.start_ns).sum()) / 1e3
        for rank, kernels in communication.items()
    }
    assert min(waited_us, key=lambda rank: waited_us[rank]) == 7
    assert waited_us[7] == pytest.approx(1534, abs=1)
    assert waited_us[1] == max(waited_us.values()) == pytest.approx(11125, abs=1)


def test_dlrm_most_of_the_wait_is_lateness_from_before_the_step(public: Diagnose) -> None:
    """The first all-to-all's start spread of 7.6 ms is that of the step marks, 7.5 ms."""
    diagnosis = public(DLRM).diagnosis
    charges = [blame for blame in diagnosis.blame if (blame.waiting_rank, blame.blamed_rank) == (1, 7)]
    parts = {blame.part: blame.wait_s for blame in charges}
    assert max(parts, key=lambda part: parts[part]) == "before_window"


# --- the same job with and without workers of the data loader


def test_without_loader_workers_a_third_of_the_step_is_data_loading(public: Diagnose) -> None:
    diagnosis = public(LOADERS[0]).diagnosis
    assert diagnosis.findings[0].name == "data-loading"
    assert diagnosis.findings[0].share_of_step == pytest.approx(0.334, abs=0.01), "59.3 of 177.6 ms by another tool"
    assert diagnosis.findings[0].evidence["has_workers"] is False
    assert diagnosis.job.step_s == pytest.approx(177.6e-3, abs=0.1e-3)


def test_with_loader_workers_next_to_nothing_is(public: Diagnose) -> None:
    diagnosis = public(LOADERS[4]).diagnosis
    assert "data-loading" not in names(diagnosis)
    (rank,) = diagnosis.ranks
    assert rank.parts_s["data_loading"] / rank.window_s < 0.01
    assert diagnosis.job.step_s == pytest.approx(141.1e-3, abs=0.1e-3)
    steps = sorted(step.window_s for step in rank.steps)
    assert (steps[2] + steps[3]) / 2 == pytest.approx(126.7e-3, abs=0.1e-3)


# --- ranks that are not there


def test_of_2_of_128_ranks_nothing_is_claimed_about_waiting(public: Diagnose) -> None:
    diagnosis = public(*SAMPLED).diagnosis
    assert diagnosis.job.num_ranks == 2
    assert diagnosis.job.world_size == 128
    assert diagnosis.job.missing_ranks == tuple(range(2, 128))
    assert any("126 of 128 ranks" in note.problem for note in diagnosis.data_quality)
    for rank in diagnosis.ranks:
        assert rank.parts_s["communication_unsplit"] > 0.3
        assert rank.parts_s["wait"] == rank.parts_s["transfer"] == 0
    assert diagnosis.blame == ()
    finding = found(diagnosis, "exposed-communication")
    assert finding.confidence == "inconclusive"
    assert "waiting or transfer" in finding.title
    assert "straggler" not in names(diagnosis)


@pytest.mark.parametrize("name", ["nccl_data", "df_index_resolver", "b200_eager_trace", "cpu_only"])
def test_one_rank_of_several_is_not_split(public: Diagnose, name: str) -> None:
    diagnosis = public(*JOBS[name]).diagnosis
    (rank,) = diagnosis.ranks
    assert rank.parts_s["communication_unsplit"] > 0
    assert rank.parts_s["wait"] == rank.parts_s["transfer"] == 0
    assert diagnosis.job.missing_ranks


def test_embedding_lookups_of_fbgemm_are_no_matrix_products(public: Diagnose) -> None:
    """fbgemm_gpu's table-batched embeddings, on a GPU whose dense layers do use tensor cores."""
    for finding in public(*SAMPLED).diagnosis.findings:
        if finding.name == "no-tensor-cores":
            assert not [kernel for kernel in finding.evidence["kernels"] if "embedding" in kernel]


# --- devices


def test_without_a_gpu_no_finding_speaks_of_one(public: Diagnose) -> None:
    for name in ("cpu_only", "distributed_info_not_found"):
        diagnosis = public(*JOBS[name]).diagnosis
        assert any("no GPU events" in note.problem for note in diagnosis.data_quality)
        for finding in diagnosis.findings:
            assert "GPU" not in finding.title


def test_a_gpu_without_tf32_or_bf16_is_not_told_to_use_them(public: Diagnose) -> None:
    """V100's tensor cores know fp16 alone."""
    finding = found(public(*JOBS["df_index_resolver"]).diagnosis, "no-tensor-cores")
    text = " ".join((finding.title, *finding.changes))
    assert "fp16" in text or "float16" in text
    assert "TF32" not in finding.title
    assert "set_float32_matmul_precision" not in text


def test_a_captured_graph_has_all_of_its_kernels(public: Diagnose) -> None:
    """25 launches of HIP graphs start 361 kernels, back to back: the GPU is busy once it has begun."""
    done = public(*JOBS["mi300_vllm_decode_graph_execution"])
    (rank,) = done.diagnosis.ranks
    assert rank.parts_s["compute"] == pytest.approx(10_674.517e-6, abs=1e-9)
    assert rank.parts_s["host_launch"] < 0.6e-3
    assert not [note for note in done.diagnosis.data_quality if "launched before" in note.problem]
    assert done.diagnosis.job.num_steps == 0


def test_gpu_work_launched_before_the_window_is_not_lost(public: Diagnose) -> None:
    """509 of 1,707 GPU events of this H100 trace: the GPU is busy in 45.4 of 49.7 ms."""
    done = public(*JOBS["h100_Qwen1"])
    (rank,) = done.diagnosis.ranks
    notes = [note.problem for note in done.diagnosis.data_quality]
    assert "509 of 1,707 GPU events were launched before the recording" in notes
    assert (rank.parts_s["compute"] + rank.parts_s["memory_copy"]) * 1e3 == pytest.approx(45.4, abs=0.1)
    assert rank.lead_in_s > 0.01, "what was launched before runs on into the step"


# --- against a slow reading of the raw file


def raw_parts_us(path: Path) -> dict[str, float]:
    """Compute, exposed communication, exposed copies and window by plain loops over the raw JSON, in exact ns."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    work = [event for event in complete if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    steps = [
        event
        for event in complete
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep")
    ]
    low = min(start for start, _ in map(span_ns, steps))
    high = max(end for _, end in map(span_ns, steps + work))
    kernels = [event for event in work if event["cat"] == "kernel"]
    sets = {
        "compute": [span_ns(event) for event in kernels if "nccl" not in event["name"]],
        "communication": [span_ns(event) for event in kernels if "nccl" in event["name"]],
        "copies": [span_ns(event) for event in work if event["cat"] != "kernel"],
    }
    edges: list[tuple[int, str, int]] = [(low, "", 0), (high, "", 0)]
    for kind, spans in sets.items():
        for start, end in spans:
            start, end = max(start, low), min(end, high)
            if start < end:
                edges += [(start, kind, 1), (end, kind, -1)]
    edges.sort()
    open_now = dict.fromkeys((*sets, ""), 0)
    total = dict.fromkeys((*sets, "idle"), 0)
    for (time, kind, change), (following, _, _) in pairwise(edges):
        open_now[kind] += change
        state = next((name for name in sets if open_now[name]), "idle")
        total[state] += following - time
    return {name: ns / 1e3 for name, ns in total.items()} | {"window": (high - low) / 1e3}


def span_ns(event: dict[str, Any]) -> tuple[int, int]:
    start, duration = int(Decimal(event["ts"]) * 1000), int(Decimal(event["dur"]) * 1000)
    return start, start + duration


@pytest.mark.parametrize("name", ["h100_Qwen1", "nccl_data", "mi250_minitoy_train_ROCm6_2_kineto"])
def test_parts_are_those_of_a_slow_reading_of_the_raw_file(public: Diagnose, public_folder: Path, name: str) -> None:
    (file,) = JOBS[name]
    expected = raw_parts_us(public_folder / file)
    (rank,) = public(file).diagnosis.ranks
    parts_us = {part: seconds * 1e6 for part, seconds in rank.parts_s.items()}
    assert rank.window_s * 1e6 == pytest.approx(expected["window"], abs=0.01)
    assert parts_us["compute"] == pytest.approx(expected["compute"], abs=0.01)
    assert parts_us["communication_unsplit"] == pytest.approx(expected["communication"], abs=0.01)
    assert parts_us["memory_copy"] == pytest.approx(expected["copies"], abs=0.01)
    busy = ("compute", "communication_unsplit", "memory_copy")
    idle_us = sum(us for part, us in parts_us.items() if part not in busy)
    assert idle_us == pytest.approx(expected["idle"], abs=0.01)
