"""The rule `checkpoint-stall`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder

MIB = 2**20


def saving(save: float, *, copies: float = 0, other_copies: float = 0) -> list[TraceBuilder]:
    """Rank 0 saves at the begin of the second step, and rank 1 waits for it at the all-reduce after 2 ms of compute.

    `copies` of the time go to copies into pageable memory; `other_copies` end each step of both ranks.
    """
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP)
            is_saving = trace.rank == 0 and number == 2
            late, last = (save if is_saving else 0), (save if number == 2 else 0)
            if is_saving:
                trace.annotation("torch.save", at, save)
                if copies:
                    trace.copy("DtoH", num_bytes=80 * MIB, launch_at=at, launch_duration=copies, start=at,
                               duration=copies, pageable=True)  # fmt: skip
            trace.launch(GEMM, at + late, 5, at + late + 5, 2000, op="aten::mm")
            trace.collective("allreduce", at + late + 5, at + late + 2005, last - late + 20)
            trace.launch(GEMM, at + late + 6, 5, at + last + 2025, STEP - last - 2025 - other_copies)
            if other_copies:
                start = at + STEP - other_copies
                trace.copy("HtoD", num_bytes=MIB, launch_at=at + late + 20, start=start, duration=other_copies)
    return traces


def test_the_others_wait_for_the_rank_that_writes() -> None:
    """5000 us in one of two steps, on rank 0 as its own and on rank 1 as waiting: 2500 us a step."""
    diagnosis = free_of_recorder_cost(*saving(5000))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("checkpoint-stall", (0,))
    assert finding.cost_s_per_step == pytest.approx(2500e-6, rel=0.001)
    assert finding.evidence["steps"] == [2]
    assert finding.evidence["waiting_ranks"] == [1]
    assert not {"straggler", "exposed-communication"} & set(names(diagnosis))


def test_its_copies_to_the_host_are_part_of_its_cost_and_not_of_memory_copies() -> None:
    diagnosis = free_of_recorder_cost(*saving(5000, copies=3000))
    finding = found(diagnosis, "checkpoint-stall")
    assert finding.evidence["checkpoint_s"] == pytest.approx(1000e-6, rel=0.01)
    assert finding.evidence["copies_s"] == pytest.approx(1500e-6)
    assert finding.cost_s_per_step == pytest.approx(2500e-6, rel=0.001)
    assert "memory-copy" not in names(diagnosis)


def test_it_takes_no_copies_that_are_not_its_own() -> None:
    costs = costs_us(free_of_recorder_cost(*saving(5000, copies=3000, other_copies=1000)))
    assert costs["checkpoint-stall"] == pytest.approx(2500, rel=0.002)
    assert costs["memory-copy"] == pytest.approx(1000, rel=0.01)


def test_without_an_annotation_a_burst_of_pageable_copies_is_recognised() -> None:
    """80 MiB to the host, then nothing the profiler sees until the next operator at 4000."""
    trace = TraceBuilder(0, 1)
    trace.step(1, 0, STEP)
    trace.copy("DtoH", num_bytes=80 * MIB, launch_at=0, launch_duration=1000, start=0, duration=1000, pageable=True)
    trace.launch(GEMM, 4000, 5, 4005, STEP - 4005, op="aten::mm")
    finding = found(free_of_recorder_cost(trace), "checkpoint-stall")
    assert finding.cost_s_per_step == pytest.approx(4000e-6)
    assert finding.evidence["num_bytes"] == 80 * MIB


@pytest.mark.parametrize(("save", "is_told"), [(380, False), (420, True)])
def test_below_two_percent_of_the_step_it_is_not_told(save: float, is_told: bool) -> None:
    """Half of it a step: written in one of two."""
    assert ("checkpoint-stall" in names(free_of_recorder_cost(*saving(save)))) == is_told
