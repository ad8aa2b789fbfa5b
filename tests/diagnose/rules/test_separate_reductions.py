"""The rule `separate-reductions`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder

COMPUTE_US, REDUCE_US = 3000.0, 100.0


def looping(
    num_calls: int,
    *,
    num_elements: int = 1000,
    compute_after: float = 0.0,
    wrapper: str | None = None,
    compute_us: float = COMPUTE_US,
) -> list[TraceBuilder]:
    """Two ranks that compute, and then reduce one gradient after the other; `compute_after` follows the first one."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP)
            if wrapper is not None:
                trace.annotation(wrapper, at, 2)
            trace.launch(GEMM, at, 4, at + 5, compute_us)
            time = at + 5 + compute_us
            for place in range(num_calls):
                trace.collective("allreduce", at + 6 + place / 100, time, REDUCE_US, num_elements=num_elements,
                                 launch_duration=0)  # fmt: skip
                time += REDUCE_US
                if place == 0 and compute_after:
                    trace.launch(GEMM, at + 6.005, 0, time, compute_after)
                    time += compute_after
            trace.launch("adam", at + 101, 5, time, at + STEP - time)
    return traces


def test_a_loop_over_the_parameters_is_recognised_with_what_two_buckets_would_save() -> None:
    """20 equal calls of 100 us: 18 of them are not needed, and half of the rest could hide behind backward."""
    diagnosis = free_of_recorder_cost(*looping(20))
    found = next(each for each in diagnosis.findings if each.name == "separate-reductions")
    assert found.evidence["reductions_per_step"] == 20
    assert found.evidence["saved_by_bucketing_s"] == pytest.approx(1800e-6)
    assert found.evidence["saved_by_overlap_s"] == pytest.approx(100e-6)
    assert found.cost_s_per_step == pytest.approx(1900e-6)
    assert "DistributedDataParallel" in found.changes[0]


def test_what_a_loop_must_exchange_anyway_stays_with_the_general_finding() -> None:
    costs = {each.name: each.cost_s_per_step for each in free_of_recorder_cost(*looping(20)).findings}
    total = costs["separate-reductions"] + costs.get("exposed-communication", 100e-6)
    assert total == pytest.approx(2000e-6)


@pytest.mark.parametrize(("num_calls", "is_named"), [(8, True), (7, False)])
def test_a_few_calls_are_no_loop(num_calls: int, is_named: bool) -> None:
    assert ("separate-reductions" in names(free_of_recorder_cost(*looping(num_calls)))) == is_named


@pytest.mark.parametrize(("compute_after", "is_named"), [(300.0, True), (370.0, False)])
def test_calls_between_compute_are_no_loop_after_it(compute_after: float, is_named: bool) -> None:
    """3,000 of 3,300 us before the first call are 91 %, of 3,370 89 %."""
    assert (
        "separate-reductions" in names(free_of_recorder_cost(*looping(20, compute_after=compute_after)))
    ) == is_named


def test_a_wrapper_that_reduces_is_no_loop() -> None:
    wrapped = looping(20, wrapper="DistributedDataParallel.forward")
    assert "separate-reductions" not in names(free_of_recorder_cost(*wrapped))


def test_large_gradients_need_more_buckets() -> None:
    """20 gradients of 10 MiB fill 8 buckets: 12 calls are not needed, and 7 of 8 buckets could hide."""
    diagnosis = free_of_recorder_cost(*looping(20, num_elements=10 << 18))
    found = next(each for each in diagnosis.findings if each.name == "separate-reductions")
    assert found.evidence["saved_by_bucketing_s"] == pytest.approx(1200e-6)
    assert found.evidence["saved_by_overlap_s"] == pytest.approx(800e-6 * 7 / 8)


def test_no_more_can_hide_than_the_backward_pass_takes_two_thirds_of_the_compute() -> None:
    """40 gradients of 10 MiB fill 16 buckets: 1,500 us could hide, but of 2,000 us of compute 1,333 are backward."""
    diagnosis = free_of_recorder_cost(*looping(40, num_elements=10 << 18, compute_us=2000.0))
    found = next(each for each in diagnosis.findings if each.name == "separate-reductions")
    assert found.evidence["saved_by_bucketing_s"] == pytest.approx(2400e-6)
    assert found.evidence["saved_by_overlap_s"] == pytest.approx(1333.3e-6, rel=0.01)
