"""The rule `data-loading`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, attributed, costs_us, found, free_of_recorder_cost, names, times

from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Finding
from flatout.testing import TraceBuilder


def loading(*loads: float, num_steps: int = 3, workers: bool = True) -> list[TraceBuilder]:
    """Each rank loads data at the begin of each step, computes 2 ms, and meets the others in an all-reduce."""
    traces = [TraceBuilder(rank, len(loads)) for rank in range(len(loads))]
    for trace, load in zip(traces, loads, strict=True):
        for number, at in times(num_steps):
            trace.step(number, at, STEP)
            if workers and load > 0:  # a rank without a load has no loader of its own
                trace.data_loading(at, load)
            elif not workers:
                trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, load)
            trace.launch(GEMM, at + load, 5, at + load + 5, 2000)
            if len(loads) > 1:
                trace.collective("allreduce", at + load + 5, at + load + 2005, max(loads) - load + 20)
            end = max(loads) + 2025
            trace.launch(GEMM, at + load + 6, 5, at + end, STEP - end)
    return traces


def test_time_in_which_the_gpu_waits_for_a_batch_is_its_cost() -> None:
    diagnosis = free_of_recorder_cost(*loading(3000))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("data-loading", (0,))
    assert finding.cost_s_per_step == pytest.approx(3000e-6)
    assert finding.share_of_step == pytest.approx(0.3)
    assert finding.safety == "exact"
    assert finding.evidence["num_batches_per_step"] == 1


def test_waiting_for_the_slowest_loader_belongs_to_it_too() -> None:
    """Rank 1 loads for 3000 us and rank 0 for 1000, and so waits 2000: fixing the loading saves 3000 on both."""
    diagnosis = free_of_recorder_cost(*loading(1000, 3000))
    finding = found(diagnosis, "data-loading")
    assert finding.cost_s_per_step == pytest.approx(3000e-6, rel=0.001)
    assert finding.ranks == (1,), "rank 0 loads less than half as long"
    assert finding.evidence["idle_in_loader_s"] == pytest.approx({"0": 1000e-6, "1": 3000e-6})
    assert finding.evidence["last_rank"] == 1
    assert finding.evidence["last_rank_late_by_s"]["data_loading"] == pytest.approx(2000e-6, rel=0.01)
    assert "straggler" not in names(diagnosis)


def test_ranks_that_load_at_least_half_as_long_are_named() -> None:
    assert found(free_of_recorder_cost(*loading(1600, 3000, 2900, 100)), "data-loading").ranks == (0, 1, 2)


def test_a_loader_without_workers_is_told_to_have_some() -> None:
    alone = found(free_of_recorder_cost(*loading(3000, workers=False)), "data-loading")
    assert alone.evidence["has_workers"] is False
    assert "no worker processes" in alone.title
    assert "num_workers" in alone.changes[0]
    assert found(free_of_recorder_cost(*loading(3000)), "data-loading").evidence["has_workers"] is True


@pytest.mark.parametrize(("load", "is_told"), [(190, False), (210, True)])
def test_below_two_percent_of_the_step_it_is_not_told(load: float, is_told: bool) -> None:
    assert ("data-loading" in names(free_of_recorder_cost(*loading(load)))) == is_told


def test_a_loader_that_the_gpu_does_not_wait_for_costs_nothing() -> None:
    """The batch is fetched while the GPU still computes the step before."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 5).data_loading(at + 10, 8000)
    assert costs_us(free_of_recorder_cost(trace)) == {}


def known(**facts: object) -> Finding:
    """The finding of a recording that knows these facts."""
    job = attributed(*loading(3000, workers=False))
    diagnosis = diagnose(job, untraced=Untraced(step_s=1e6), facts=JobFacts(**facts))  # type: ignore[arg-type]
    return found(diagnosis, "data-loading")


@pytest.mark.parametrize(("share", "waits"), [(0.49, True), (0.51, False)])
def test_a_loader_that_waits_is_told_to_have_more_workers_than_cores(share: float, waits: bool) -> None:
    finding = known(loader_cpu_share=share, loader_is_iterable=False)
    assert ("waiting rather than computing" in finding.title) == waits
    assert ("above the number of cores" in finding.changes[0]) == waits
    assert finding.evidence["loader_cpu_share"] == share


def test_the_stage_with_most_of_the_work_is_named() -> None:
    finding = known(loader_cause="decode-bound", loader_stage="decode", loader_stage_share=0.6)
    assert finding.title.endswith("; most of the work on a sample is its stage decode")
    assert finding.evidence["loader_cause"] == "decode-bound" and finding.evidence["largest_stage_share"] == 0.6
    assert "stage" not in known().title and "loader_cause" not in known().evidence


@pytest.mark.parametrize("share", [0.1, 1.0, None])
@pytest.mark.parametrize(("is_iterable", "is_told"), [(True, True), (None, True), (False, False)])
def test_more_workers_are_not_offered_to_an_iterable_data_set_without_saying_that_samples_repeat(
    is_iterable: bool | None, is_told: bool, share: float | None
) -> None:
    finding = known(loader_is_iterable=is_iterable, loader_cpu_share=share)
    for line in finding.changes:
        if "num_workers" in line or "more workers" in line:
            assert ("repeat" in line) == is_told


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"loader_draws": True, "loader_keeps_state": False}, "(semantic:"),
        ({"loader_draws": False, "loader_keeps_state": True}, "(semantic:"),
        ({}, "exact only if"),
        ({"loader_draws": False, "loader_keeps_state": False}, "persistent_workers=True)"),
    ],
)
def test_persistent_workers_are_called_exact_only_where_they_are(facts: dict[str, bool], words: str) -> None:
    (line,) = [line for line in known(**facts).changes if "persistent_workers" in line]
    assert words in line
    assert ("exact" in line or "semantic" in line) == (len(facts) != 2 or any(facts.values()))


def test_where_one_rank_reads_for_all_each_may_read_its_own_part() -> None:
    assert "dispatch_batches=False" in found(free_of_recorder_cost(*loading(3000, 0)), "data-loading").changes[0]
    shared = found(free_of_recorder_cost(*loading(3000, 100)), "data-loading")
    assert not any("dispatch_batches" in line for line in shared.changes)


def test_a_rank_whose_batches_are_in_time_has_a_loader_of_its_own() -> None:
    """Two ranks of ResNet-50 with two workers each: in the traced steps one batch came late, on rank 0."""
    traces = loading(3000, 0)
    for _, at in times(3):
        traces[1].data_loading(at, 1).launch(GEMM, at, 1, at, 5)
    finding = found(free_of_recorder_cost(*traces), "data-loading")
    assert not any("dispatch_batches" in line for line in finding.changes)


def test_who_waits_in_a_broadcast_without_a_root_waits_for_the_rank_that_reads() -> None:
    """Gloo records no root: rank 1 is in the broadcast until rank 0 has read the batch and sends it."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace in traces:
        for number, at in times(3):
            trace.step(number, at, STEP)
            if trace.rank == 0:
                trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 7000)
            begin = at + 7000 if trace.rank == 0 else at
            trace.annotation("gloo:broadcast", begin, at + 7200 - begin + 50 * trace.rank)
            trace.op("aten::mm", at + 7250, 2550).annotation("gloo:all_reduce", at + 9800, 200)
    finding = found(free_of_recorder_cost(*traces), "data-loading")
    assert finding.ranks == (0,)
    assert finding.cost_s_per_step == pytest.approx(7000e-6, rel=0.02)
