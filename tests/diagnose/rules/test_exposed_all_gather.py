"""The rule `exposed-all-gather`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder


def sharded(
    gather: float, *, compute: float | None = None, reduce_scatter: bool = True, hidden: float = 0
) -> list[TraceBuilder]:
    """Two ranks: two all-gathers in the open, then compute, then a reduce-scatter of 500 us.

    Without `compute` it fills the step; else the rest of the step is a memory set. `hidden` of the compute has a
    third gather under it.
    """
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP)
            for i in range(2):
                trace.collective("_allgather_base", at, at + 1 + i * gather, gather, launch_duration=1)
            begin = at + 1 + 2 * gather
            length = STEP - 1 - 2 * gather - 500 if compute is None else compute
            trace.launch(GEMM, at + 2, 1, begin, length)
            if hidden:
                trace.collective("_allgather_base", at + 3, begin, hidden, launch_duration=1)
            operation = "_reduce_scatter_base" if reduce_scatter else "allreduce"
            trace.collective(operation, at + 4, begin + length, 500)
            rest = at + STEP - begin - length - 500
            trace.memset(num_bytes=1, launch_at=at + 6, start=begin + length + 500, duration=rest)
    return traces


def test_half_of_the_gathers_can_be_left_out_and_compute_can_hide_the_rest() -> None:
    """2 x 600 us: those before backward (600), and the others, which fit under 8300 us of compute (600)."""
    diagnosis = free_of_recorder_cost(*sharded(600))
    finding = found(diagnosis, "exposed-all-gather")
    assert finding.cost_s_per_step == pytest.approx(1200e-6, rel=0.001)
    assert finding.ranks == (0, 1)
    assert finding.evidence["exposed_all_gather_s"] == pytest.approx(1200e-6, rel=0.001)
    assert finding.evidence["num_all_gathers_per_step"] == 2
    assert costs_us(diagnosis)["exposed-communication"] == pytest.approx(500, rel=0.01), "the reduce-scatter"


def test_compute_can_hide_no_more_than_it_lasts() -> None:
    """2 x 2000 us with 700 us of compute: 2000 and 700 can be saved, the general finding keeps 1300 and 500."""
    costs = costs_us(free_of_recorder_cost(*sharded(2000, compute=700)))
    assert costs["exposed-all-gather"] == pytest.approx(2700, rel=0.001)
    assert costs["exposed-communication"] == pytest.approx(1800, rel=0.001)


def test_compute_that_hides_a_gather_already_can_hide_no_other() -> None:
    costs = costs_us(free_of_recorder_cost(*sharded(2000, compute=700, hidden=500)))
    assert costs["exposed-all-gather"] == pytest.approx(2000 + 200, rel=0.001)


def test_without_reduce_scatter_it_is_no_sharded_training() -> None:
    """Tensor parallelism gathers activations, which nobody can prefetch."""
    assert names(free_of_recorder_cost(*sharded(600, reduce_scatter=False))) == ["exposed-communication"]


@pytest.mark.parametrize(("gather", "is_told"), [(95, False), (105, True)])
def test_below_two_percent_of_the_step_it_is_not_told(gather: float, is_told: bool) -> None:
    assert ("exposed-all-gather" in names(free_of_recorder_cost(*sharded(gather)))) == is_told
