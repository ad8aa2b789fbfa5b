"""Jobs in which something was wrong on purpose: each is diagnosed as the README of the traces says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.diagnose.conftest import Diagnose, known_trace
from tests.diagnose.jobs import found, names, total_cost_s

from flatout.records.diagnosis import PART_NAMES, Diagnosis

FIRST_FINDING = {
    "accum_tcp": ("redundant-gradient-sync", {0, 1}),
    "alloc_churn": ("allocator-churn", {0, 1}),
    "ckpt_stall": ("checkpoint-stall", {0}),
    "data_starved": ("data-loading", {0, 1, 2, 3}),
    "ddp_fp32": ("no-tensor-cores", {0, 1, 2, 3}),
    "ddp_sockets": ("exposed-communication", {0, 1, 2, 3}),
    "fsdp": ("host-bound", {0}),
    "fsdp_tcp": ("exposed-communication", {0, 1}),
    "host_bound_small": ("host-bound", {0, 1}),
    "host_sync": ("host-bound", {1}),
    "pageable_copy": ("memory-copy", {0, 1}),
    "pp_gpipe": ("pipeline-bubble", {0, 1, 2, 3}),
    "straggler": ("straggler", {2}),
    "unbalanced": ("host-bound", {0, 1}),
}
# Four of the traces are in ../shared alone.
ALL = tuple(name for name in (*FIRST_FINDING, "healthy_fsdp") if known_trace(name) is not None)

# Where the recorder costs nothing, and how far the traced step may be from the untraced one.
STEP_TOLERANCE = {
    "straggler": 0.03,
    "ddp_fp32": 0.05,
    "ddp_sockets": 0.03,
    "fsdp_tcp": 0.05,
    "accum_tcp": 0.03,
    "healthy_fsdp": 0.04,
    "pp_gpipe": 0.03,
}


def share_of_steps(diagnosis: Diagnosis, rank: int, *parts: str) -> float:
    """Share of the rank's whole steps that went to the parts."""
    (found_rank,) = [r for r in diagnosis.ranks if r.rank == rank]
    spent = sum(step.parts_s[part] for step in found_rank.steps for part in parts)
    return spent / sum(step.window_s for step in found_rank.steps)


def blame_shares(diagnosis: Diagnosis, waiting: int | None = None) -> dict[tuple[int, str], float]:
    """(blamed rank, part) -> its share of the exposed wait of one rank, or of all."""
    charges = [blame for blame in diagnosis.blame if waiting in (None, blame.waiting_rank)]
    total = sum(blame.wait_s for blame in charges)
    shares: dict[tuple[int, str], float] = {}
    for blame in charges:
        key = blame.blamed_rank, blame.part
        shares[key] = shares.get(key, 0) + blame.wait_s / total
    return shares


# --- what holds for all of them


@pytest.mark.parametrize("name", [name for name in FIRST_FINDING if name in ALL])
def test_the_first_finding_is_what_was_done_and_on_the_right_ranks(known: Diagnose, name: str) -> None:
    first = known(name).diagnosis.findings[0]
    assert (first.name, set(first.ranks)) == FIRST_FINDING[name]


@pytest.mark.parametrize("name", ALL)
def test_parts_sum_to_the_window_and_to_each_step(known: Diagnose, name: str) -> None:
    for rank in known(name).diagnosis.ranks:
        assert tuple(rank.parts_s) == PART_NAMES
        assert sum(rank.parts_s.values()) == pytest.approx(rank.window_s, abs=1e-6)
        assert len(rank.steps) == rank.num_steps == 3
        for step in rank.steps:
            assert sum(step.parts_s.values()) == pytest.approx(step.window_s, abs=1e-6)
        assert rank.lead_in_s + sum(step.window_s for step in rank.steps) == pytest.approx(rank.window_s, abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_all_ranks_are_there_and_next_to_nothing_is_unexplained(known: Diagnose, name: str) -> None:
    diagnosis = known(name).diagnosis
    assert diagnosis.job.missing_ranks == ()
    assert diagnosis.job.num_ranks == diagnosis.job.world_size == len(diagnosis.ranks)
    assert diagnosis.job.device == "NVIDIA H200"
    assert diagnosis.data_quality == ()
    for rank in diagnosis.ranks:
        assert share_of_steps(diagnosis, rank.rank, "communication_unsplit", "unattributed") < 0.01


@pytest.mark.parametrize("name", ALL)
def test_the_blame_of_a_rank_is_its_exposed_wait(known: Diagnose, name: str) -> None:
    diagnosis = known(name).diagnosis
    for rank in diagnosis.ranks:
        charged = sum(blame.wait_s for blame in diagnosis.blame if blame.waiting_rank == rank.rank)
        assert charged == pytest.approx(sum(step.parts_s["wait"] for step in rank.steps), abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_each_second_belongs_to_one_finding(known: Diagnose, name: str) -> None:
    diagnosis = known(name).diagnosis
    assert diagnosis.job.step_s is not None
    assert total_cost_s(diagnosis.findings) <= diagnosis.job.step_s
    assert [f.cost_s_per_step for f in diagnosis.findings] == sorted(
        (f.cost_s_per_step for f in diagnosis.findings), reverse=True
    )
    for finding in diagnosis.findings:
        assert finding.share_of_step == pytest.approx(finding.cost_s_per_step / diagnosis.job.step_s)
        assert finding.share_of_step >= 0.02


@pytest.mark.parametrize("name", [name for name in STEP_TOLERANCE if name in ALL])
def test_step_times_agree_with_the_untraced_ones(
    known: Diagnose, untraced_step_s: Callable[[str], float], name: str
) -> None:
    diagnosis = known(name).diagnosis
    assert diagnosis.job.step_s == pytest.approx(untraced_step_s(name), rel=STEP_TOLERANCE[name])
    for rank in diagnosis.ranks:
        assert rank.step_s == pytest.approx(untraced_step_s(name), rel=STEP_TOLERANCE[name] + 0.01)


@pytest.mark.parametrize("name", ALL)
def test_no_clock_is_moved_on_one_host(known: Diagnose, name: str) -> None:
    assert set(known(name).job.clock_offset_ns.values()) == {0}


# --- a healthy job


def test_a_healthy_job_has_no_finding(known: Diagnose) -> None:
    diagnosis = known("healthy_fsdp").diagnosis
    assert diagnosis.findings == ()
    for rank in (0, 1):
        assert share_of_steps(diagnosis, rank, "compute") == pytest.approx(0.97, abs=0.005)


# --- late ranks


def test_straggler_rank_2_is_late_by_its_own_compute(known: Diagnose) -> None:
    diagnosis = known("straggler").diagnosis
    assert len([f for f in diagnosis.findings if f.name == "straggler"]) == 1
    finding = found(diagnosis, "straggler")
    assert finding.confidence == "high"
    assert finding.evidence["cause"] == "compute"
    assert finding.evidence["late_in_steps"] == [1, 2, 3]
    assert finding.share_of_step == pytest.approx(0.5, abs=0.05)
    for rank in (0, 1, 3):
        assert share_of_steps(diagnosis, rank, "wait") == pytest.approx(0.5, abs=0.05)
        assert blame_shares(diagnosis, rank)[2, "compute"] > 0.93
    assert share_of_steps(diagnosis, 2, "wait") < 0.01


def test_straggler_compute_is_88_ms_on_rank_2_and_38_on_the_others(known: Diagnose) -> None:
    diagnosis = known("straggler").diagnosis
    compute_ms = [sum(s.parts_s["compute"] for s in rank.steps) / 3 * 1e3 for rank in diagnosis.ranks]
    assert compute_ms == pytest.approx([38, 38, 88, 38], abs=5)


def test_data_starved_rank_3_is_last_half_by_loading_and_half_by_launch_work(known: Diagnose) -> None:
    diagnosis = known("data_starved").diagnosis
    finding = found(diagnosis, "data-loading")
    assert finding.evidence["has_workers"] is False
    assert finding.evidence["last_rank"] == 3
    shares = blame_shares(diagnosis)
    assert sum(share for (rank, _), share in shares.items() if rank == 3) > 0.95
    assert 0.35 < shares[3, "data_loading"] < 0.65
    assert 0.35 < shares[3, "host_launch"] < 0.65
    assert shares.get((3, "compute"), 0) < 0.01, "rank 3 computes less than the others, which had computed ahead"
    assert "straggler" not in names(diagnosis)


def test_host_sync_rank_1_is_late_by_its_launch_work(known: Diagnose) -> None:
    diagnosis = known("host_sync").diagnosis
    assert sum(b.wait_s for b in diagnosis.blame if b.waiting_rank == 0) == pytest.approx(40e-3, rel=0.05)
    assert blame_shares(diagnosis, 0)[1, "host_launch"] > 0.85
    finding = found(diagnosis, "host-bound")
    assert 1 in finding.ranks
    assert finding.evidence["sync_calls_per_step"] == 39
    assert finding.evidence["recorder_cost_s"] > 0
    assert 0 < share_of_steps(diagnosis, 1, "host_sync") < 0.1, "the calls themselves cost next to nothing"


def test_alloc_churn_rank_0_waits_16_ms_for_rank_1(known: Diagnose) -> None:
    diagnosis = known("alloc_churn").diagnosis
    assert sum(b.wait_s for b in diagnosis.blame if b.waiting_rank == 0) == pytest.approx(16.5e-3, rel=0.05)
    assert blame_shares(diagnosis, 0)[1, "host_launch"] > 0.7
    for rank in (0, 1):
        assert 0.03 < share_of_steps(diagnosis, rank, "allocator") < 0.08
    evidence = found(diagnosis, "allocator-churn").evidence
    assert evidence["calls_per_step"].keys() == {"cudaMalloc", "cudaFree"}


def test_pageable_copy_holds_up_the_gpu_and_rank_1_is_slower(known: Diagnose) -> None:
    diagnosis = known("pageable_copy").diagnosis
    finding = found(diagnosis, "memory-copy")
    assert finding.share_of_step == pytest.approx(0.27, abs=0.02)
    assert finding.evidence["pageable_bytes_per_step"] == pytest.approx(96 * 2**20, rel=0.001)
    assert sum(b.wait_s for b in diagnosis.blame if b.waiting_rank == 0) == pytest.approx(126e-3, rel=0.05)
    assert sum(share for (rank, _), share in blame_shares(diagnosis, 0).items() if rank == 1) > 0.99


@pytest.mark.usefixtures("shared_data")
def test_fsdp_rank_0_is_late_by_its_host_and_communication_is_exposed(known: Diagnose) -> None:
    diagnosis = known("fsdp").diagnosis
    for rank in (1, 2, 3):
        assert blame_shares(diagnosis, rank)[0, "host_launch"] > 0.7
    finding = found(diagnosis, "host-bound")
    assert finding.evidence["slowest_rank"] == 0
    assert max(finding.evidence["others_wait_s"].values()) == pytest.approx(40e-3, abs=10e-3)
    exposed_ms = [sum(s.parts_s["transfer"] for s in rank.steps) / 3 * 1e3 for rank in diagnosis.ranks]
    assert all(14 < ms < 18 for ms in exposed_ms)
    assert {"exposed-communication", "exposed-all-gather"} <= set(names(diagnosis))


@pytest.mark.usefixtures("shared_data")
def test_fsdp_rank_0_computes_less_than_those_who_wait_for_it_and_is_no_straggler(known: Diagnose) -> None:
    diagnosis = known("fsdp").diagnosis
    compute = [sum(s.parts_s["compute"] for s in rank.steps) for rank in diagnosis.ranks]
    assert compute[0] == min(compute)
    assert "straggler" not in names(diagnosis)


def test_unbalanced_the_heavier_rank_changes_from_step_to_step(known: Diagnose) -> None:
    diagnosis = known("unbalanced").diagnosis
    finding = found(diagnosis, "unbalanced-data")
    assert finding.evidence["heaviest_rank_by_step"] == [1, 1, 0]
    assert finding.share_of_step == pytest.approx(0.07, abs=0.01)
    assert finding.safety == "semantic"
    assert set(finding.ranks) == {0, 1}
    assert found(diagnosis, "host-bound").evidence["slowest_rank"] == 0


# --- the host


def test_host_bound_small_has_a_synchronising_call_for_each_parameter(known: Diagnose) -> None:
    diagnosis = known("host_bound_small").diagnosis
    assert found(diagnosis, "host-bound").evidence["sync_calls_per_step"] == 77
    for rank in (0, 1):
        assert share_of_steps(diagnosis, rank, "host_launch", "host_sync") > 0.6
    small = found(diagnosis, "small-kernels")
    assert small.evidence["num_optimizer_launches_per_step"] > 500, "the optimizer is not fused"


def test_a_known_untraced_step_scales_the_host_findings(
    known: Diagnose, untraced_step_s: Callable[[str], float]
) -> None:
    """Traced 38.4 ms, untraced 21.1: what the recorder added is no cost of the host."""
    from flatout.diagnose.find import diagnose
    from flatout.diagnose.recorder import Untraced

    done = known("host_bound_small")
    scaled = diagnose(done.job, untraced=Untraced(step_s=untraced_step_s("host_bound_small")))
    evidence = found(scaled, "host-bound").evidence
    assert evidence["recorder_cost_source"] == "measured"
    assert evidence["recorder_cost_s"] == pytest.approx(38.386e-3 - 21.103e-3, abs=1e-5)
    assert scaled.job.untraced_step_s == pytest.approx(21.103e-3, abs=1e-6)
    host = [f for f in scaled.findings if f.name in ("host-bound", "host-sync", "small-kernels")]
    traced_idle = share_of_steps(scaled, 0, "host_launch", "host_sync") * 38.4e-3
    assert total_cost_s(host) < traced_idle - evidence["recorder_cost_s"] + 1e-3


def test_ckpt_stall_is_charged_to_rank_0_and_the_others_wait(known: Diagnose) -> None:
    diagnosis = known("ckpt_stall").diagnosis
    finding = found(diagnosis, "checkpoint-stall")
    assert finding.share_of_step > 0.9
    assert finding.evidence["steps"] == [1, 3], "every second step"
    for rank in (1, 2, 3):
        assert share_of_steps(diagnosis, rank, "wait") > 0.9
        assert share_of_steps(diagnosis, rank, "transfer") < 0.01
        shares = blame_shares(diagnosis, rank)
        assert shares[0, "checkpoint"] + shares[0, "memory_copy"] > 0.98
    assert share_of_steps(diagnosis, 0, "checkpoint") > 0.7
    assert names(diagnosis) == ["checkpoint-stall"], "all else is below 2 % of these steps"


# --- communication


@pytest.mark.usefixtures("shared_data")
def test_ddp_sockets_is_bound_by_transfer_and_no_rank_is_late(known: Diagnose) -> None:
    diagnosis = known("ddp_sockets").diagnosis
    finding = found(diagnosis, "exposed-communication")
    assert finding.share_of_step == pytest.approx(0.95, abs=0.02)
    assert finding.evidence["hidden_share"] < 0.05
    assert finding.evidence["bus_bandwidth_bytes_per_s"] == pytest.approx(3.2e9, rel=0.1)
    for rank in range(4):
        (of_rank,) = [r for r in diagnosis.ranks if r.rank == rank]
        assert of_rank.parts_s["transfer"] / of_rank.window_s == pytest.approx(0.93, abs=0.02)
        assert share_of_steps(diagnosis, rank, "wait") < 0.01
    assert names(diagnosis) == ["exposed-communication"]


def test_fsdp_tcp_is_bound_by_transfer_nearly_half_of_it_parameter_gathers(known: Diagnose) -> None:
    diagnosis = known("fsdp_tcp").diagnosis
    for rank in diagnosis.ranks:
        assert 0.85 < rank.parts_s["transfer"] / rank.window_s < 0.89
    gathers = found(diagnosis, "exposed-all-gather").evidence["exposed_all_gather_s"]
    exposed = found(diagnosis, "exposed-communication").evidence["exposed_transfer_s"]
    assert gathers / exposed == pytest.approx(0.47, abs=0.04)
    assert names(diagnosis) == ["exposed-communication", "exposed-all-gather"]


@pytest.mark.usefixtures("shared_data")
def test_accum_tcp_reduces_the_same_gradients_four_times(known: Diagnose) -> None:
    diagnosis = known("accum_tcp").diagnosis
    finding = found(diagnosis, "redundant-gradient-sync")
    assert finding.evidence["passes_per_step"] == 4
    exposed = found(diagnosis, "exposed-communication").evidence["exposed_transfer_s"]
    assert finding.cost_s_per_step == pytest.approx(0.75 * exposed, rel=0.02), "three of four are needless"
    rest = found(diagnosis, "exposed-communication").cost_s_per_step
    assert finding.cost_s_per_step + rest == pytest.approx(exposed, rel=0.01), "the general finding keeps the rest"


def test_pp_gpipe_stands_idle_for_the_bubble_of_its_shape(known: Diagnose) -> None:
    done = known("pp_gpipe")
    (shape,) = done.job.pipelines
    assert (shape.stages, shape.num_microbatches) == ((0, 1, 2, 3), 4)
    finding = found(done.diagnosis, "pipeline-bubble")
    assert finding.evidence["num_stages"] == finding.evidence["num_microbatches"] == 4
    assert finding.evidence["ideal_bubble_share"] == pytest.approx(3 / 7)
    assert finding.share_of_step == pytest.approx(3 / 7, abs=0.03)
    for rank in range(4):
        assert share_of_steps(done.diagnosis, rank, "transfer") < 0.02, "send and receive wait, they hardly transfer"


# --- compute


@pytest.mark.usefixtures("shared_data")
def test_ddp_fp32_computes_without_tensor_cores_and_hides_its_communication(known: Diagnose) -> None:
    diagnosis = known("ddp_fp32").diagnosis
    finding = found(diagnosis, "no-tensor-cores")
    assert finding.evidence["plain_matmul_s"] == pytest.approx(finding.evidence["all_matmul_s"])
    assert finding.safety == "rounding"
    assert found(diagnosis, "small-kernels").evidence["num_optimizer_launches_per_step"] > 1000
    for rank in range(4):
        assert share_of_steps(diagnosis, rank, "compute") > 0.93
        assert share_of_steps(diagnosis, rank, "transfer", "wait") < 0.02
    assert "exposed-communication" not in names(diagnosis)
