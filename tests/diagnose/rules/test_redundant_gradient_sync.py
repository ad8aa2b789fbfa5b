"""The rule `redundant-gradient-sync`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder

REDUCE = 400  # us, of each bucket


def accumulating(
    passes: int,
    reduced: Sequence[int],
    buckets: Sequence[int],
    *,
    num_steps: int = 2,
    reduce: float = REDUCE,
    last: float = 1.0,
) -> list[TraceBuilder]:
    """Two ranks whose steps have some passes of forward and backward; after those in `reduced` all buckets follow.

    `buckets` are sizes in elements; those of the last pass are `last` times as large. All reductions are exposed.
    """
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(num_steps):
            trace.step(number, at, STEP)
            time = at + 5.0
            for i in range(passes):
                trace.annotation("DistributedDataParallel.forward", at + 6 * i, 2)
                trace.launch(GEMM, at + 6 * i, 4, time, 500)
                time += 500
                if i in reduced:
                    for place, size in enumerate(buckets):
                        num_elements = int(size * (last if i == passes - 1 else 1))
                        trace.collective("allreduce", at + 6 * i + 5 + place / 100, time, reduce,
                                         num_elements=num_elements, launch_duration=0)  # fmt: skip
                        time += reduce
            trace.annotation("Optimizer.step#AdamW.step", at + 100, 10)
            trace.launch("adam", at + 101, 5, time, at + STEP - time)
    return traces


def test_reductions_of_all_passes_but_the_last_are_needless() -> None:
    """4 passes of 2 buckets of 400 us: 3200 us a step, three quarters of it needless."""
    diagnosis = free_of_recorder_cost(*accumulating(4, range(4), [1000, 3000]))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("redundant-gradient-sync", (0, 1))
    assert finding.cost_s_per_step == pytest.approx(2400e-6)
    assert finding.evidence["passes_per_step"] == 4
    assert finding.evidence["reductions_per_step"] == 8
    assert "no_sync" in finding.changes[0]


def test_the_last_pass_stays_with_the_general_finding() -> None:
    costs = costs_us(free_of_recorder_cost(*accumulating(4, range(4), [1000, 3000])))
    assert costs == pytest.approx({"redundant-gradient-sync": 2400, "exposed-communication": 800}, rel=0.001)


@pytest.mark.parametrize(("last", "is_needless"), [(1.05, True), (1.25, False)])
def test_passes_that_reduce_other_gradients_are_not_needless(last: float, is_needless: bool) -> None:
    """A few elements more are padding, or a metric; a quarter more are other parameters."""
    diagnosis = free_of_recorder_cost(*accumulating(2, range(2), [1000, 3000], last=last))
    assert ("redundant-gradient-sync" in names(diagnosis)) == is_needless


def test_one_pass_a_step_is_not_accumulating() -> None:
    costs = costs_us(free_of_recorder_cost(*accumulating(1, [0], [1000, 3000])))
    assert costs == pytest.approx({"exposed-communication": 800}, rel=0.001)


@pytest.mark.parametrize("buckets", [[1000, 3000], [2000, 2000], [2000] * 8], ids=["unequal", "equal", "eight equal"])
def test_reducing_after_the_last_pass_only_is_right(buckets: list[int]) -> None:
    """As `no_sync` does. That several buckets are equally large does not mean that one is reduced several times."""
    diagnosis = free_of_recorder_cost(*accumulating(2, [1], buckets))
    assert names(diagnosis) == ["exposed-communication"]


def test_hidden_reductions_cost_nothing() -> None:
    """Each pass reduces under the compute of the next, and the last one under the optimizer."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 5)
            for i in range(4):
                trace.annotation("DistributedDataParallel.forward", at + 2 * i, 1)
                trace.collective("allreduce", at + 2 * i + 10, at + 1000 + 2000 * i, 1500)
            trace.annotation("Optimizer.step#AdamW.step", at + 100, 10)
    assert costs_us(free_of_recorder_cost(*traces)) == {}


@pytest.mark.parametrize(("reduce", "is_told"), [(190, False), (210, True)])
def test_below_two_percent_of_the_step_it_is_not_told(reduce: float, is_told: bool) -> None:
    diagnosis = free_of_recorder_cost(*accumulating(2, range(2), [1000], reduce=reduce))
    assert ("redundant-gradient-sync" in names(diagnosis)) == is_told


def test_where_ranks_are_missing_the_needless_share_is_of_the_unsplit_time() -> None:
    """Whether the exposed 1600 us of 2 passes are transfer or waiting, half of them need not be."""
    diagnosis = free_of_recorder_cost(accumulating(2, range(2), [1000, 3000])[0])
    assert found(diagnosis, "redundant-gradient-sync").cost_s_per_step == pytest.approx(800e-6)
