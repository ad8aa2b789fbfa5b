"""The rule `memory-copy`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder

MIB = 2**20


def copying(copy: float, *, pageable: bool = False, host: float = 0, num_steps: int = 2) -> TraceBuilder:
    """A copy at the begin of each step, then `host` us of host work, then compute.

    From pageable memory the call lasts as long as the copy.
    """
    trace = TraceBuilder(0, 1)
    for number, at in times(num_steps):
        trace.step(number, at, STEP)
        trace.copy("HtoD", num_bytes=96 * MIB, launch_at=at, launch_duration=copy if pageable else 1, start=at,
                   duration=copy, pageable=pageable)  # fmt: skip
        trace.launch(GEMM, at + copy + host - 5, 5, at + copy + host, STEP - copy - host)
    return trace


def test_exposed_copies_cost_their_time() -> None:
    finding = found(free_of_recorder_cost(copying(3000)), "memory-copy")
    assert finding.cost_s_per_step == pytest.approx(3000e-6)
    assert finding.ranks == (0,)
    assert finding.evidence["bytes_per_step"] == {"HtoD": 96 * MIB}
    assert finding.evidence["pageable_bytes_per_step"] == 0
    assert "pageable" not in finding.title


def test_a_pageable_copy_says_how_long_it_blocks_the_host() -> None:
    finding = found(free_of_recorder_cost(copying(3000, pageable=True)), "memory-copy")
    assert finding.evidence["pageable_bytes_per_step"] == 96 * MIB
    assert finding.evidence["host_blocked_s"] == pytest.approx(3000e-6)
    assert "96.0 MiB per step are pageable" in finding.title


def test_a_copy_beside_compute_costs_nothing() -> None:
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 5)
        trace.copy("HtoD", num_bytes=MIB, launch_at=at + 6, start=at + 100, duration=5000, stream=20)
    assert costs_us(free_of_recorder_cost(trace)) == {}


@pytest.mark.parametrize(("copy", "is_told"), [(190, False), (210, True)])
def test_below_two_percent_of_the_step_it_is_not_told(copy: float, is_told: bool) -> None:
    assert ("memory-copy" in names(free_of_recorder_cost(copying(copy)))) == is_told


def test_the_evidence_is_that_of_a_rank_which_copies() -> None:
    """Rank 1 copies nothing and is host-bound for longer than rank 0 copies; the title is about rank 0."""
    copier, other = TraceBuilder(0), TraceBuilder(1)
    for number, at in times(2):
        for trace in (copier, other):
            trace.step(number, at, STEP)
        copier.copy("HtoD", num_bytes=96 * MIB, launch_at=at, launch_duration=2000, start=at, duration=2000,
                    pageable=True)  # fmt: skip
        copier.launch(GEMM, at + 2000, 5, at + 2005, STEP - 2025)
        other.launch(GEMM, at + 6000, 5, at + 6005, STEP - 6025)
        for trace in (copier, other):
            trace.collective("allreduce", at + 6010, at + STEP - 20, 20)
    finding = found(free_of_recorder_cost(copier, other), "memory-copy")
    assert finding.ranks == (0,)
    assert finding.evidence["bytes_per_step"] == {"HtoD": 96 * MIB}
    assert finding.evidence["pageable_bytes_per_step"] == 96 * MIB
