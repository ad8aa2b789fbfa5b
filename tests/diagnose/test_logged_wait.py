"""A wait for batches counts as the step log has it, where the recorder hid it in the traced steps."""

from __future__ import annotations

import msgspec
import pytest
from tests.diagnose.jobs import attributed, names
from tests.step_log.recorded_ranks import rank_of, steps_of

from flatout.change.candidates import share_in_trial
from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.inside.protocol import StepKind
from flatout.records.diagnosis import Diagnosis
from flatout.step_log.job_log import job_log
from flatout.testing import TraceBuilder

TRACED = (100, 101, 102)


def recorded(*, loader_s: tuple[float, float], traced_us: float = 0.0, compute_us: float = 30_000) -> Diagnosis:
    """Two ranks whose steps take 200 ms; in traced steps, the host is slow and the loader keeps up with it."""
    kind = [StepKind.TRACED if step in TRACED else "" for step in range(200)]
    waits = [dict.fromkeys(range(200), seconds) for seconds in loader_s]
    logged = [steps_of([0.2] * 200, kind=kind, loader_s=wait) for wait in waits]
    log = job_log([rank_of(rank, steps) for rank, steps in enumerate(logged)])
    traces = []
    for rank in (0, 1):
        trace, at = TraceBuilder(rank, 2), 0.0
        for number in TRACED:
            trace.step(number, at, 200_000)
            if traced_us:
                trace.data_loading(at, traced_us)
            trace.launch("gemm", at + 150_000, 5, at + 150_010, compute_us)
            at += 200_000
        traces.append(trace)
    return diagnose(attributed(*traces), untraced=Untraced(step_s=1e6), log=log)


def cost_s(diagnosis: Diagnosis) -> float:
    return sum(finding.cost_s_per_step for finding in diagnosis.findings if finding.name == "data-loading")


@pytest.mark.parametrize(
    ("loader_s", "traced_us", "expected_s"),
    [
        ((0.150, 0.150), 50_000, 0.150),  # longer than traced
        ((0.020, 0.150), 50_000, 0.150),  # the other rank waits for the one whose batch comes last
        ((0.150, 0.150), 0, 0.150),  # the trace shows none
        ((0.190, 0.190), 50_000, 0.170),  # 20 ms of it are hidden by the GPU's work
        ((0.010, 0.010), 50_000, 0.050),  # the trace shows more
    ],
)
def test_the_longer_wait_counts(loader_s: tuple[float, float], traced_us: float, expected_s: float) -> None:
    diagnosis = recorded(loader_s=loader_s, traced_us=traced_us)
    assert cost_s(diagnosis) == pytest.approx(expected_s, rel=0.02)
    assert sum(finding.cost_s_per_step for finding in diagnosis.findings) <= 0.2 * 1.001
    finding = next(finding for finding in diagnosis.findings if finding.name == "data-loading")
    assert finding.evidence["wait_in_all_steps_s"] == pytest.approx(min(max(loader_s), 0.170), rel=0.01)


def test_what_gains_a_step_by_workers_is_not_bounded_below_it() -> None:
    """An ImageNet loader with two workers: of 209 ms, 171 are waits, the trace shows 117, and 4.32x was measured."""
    diagnosis = recorded(loader_s=(0.171, 0.171), traced_us=117_000, compute_us=25_000)
    (finding,) = [finding for finding in diagnosis.findings if finding.name == "data-loading"]
    assert 1 / (1 - share_in_trial(diagnosis, finding)) > 4.32


@pytest.mark.parametrize("num_workers", [None, 2, 4])
def test_stalls_of_the_loader_are_counted_once(num_workers: int | None) -> None:
    """Every tenth step a batch is 2 s late: that is a stall with a cost of its own."""
    late = dict.fromkeys(range(0, 200, 10), 2.0)
    waits = {step: 0.050 + late.get(step, 0.0) for step in range(200)}
    kind = [StepKind.TRACED if step in TRACED else "" for step in range(200)]
    rank = steps_of([0.2 + late.get(step, 0.0) for step in range(200)], kind=kind, loader_s=waits)
    log = job_log([msgspec.structs.replace(rank_of(number, rank), loader_workers=num_workers) for number in (0, 1)])
    trace = TraceBuilder(0, 2)
    for place, number in enumerate(TRACED):
        trace.step(number, 200_000 * place, 200_000).launch("gemm", 200_000 * place, 5, 200_000 * place + 10, 150_000)
    diagnosis = diagnose(attributed(trace), untraced=Untraced(step_s=1e6), log=log)
    assert "periodic-stall" in names(diagnosis)
    assert cost_s(diagnosis) == pytest.approx(0.050, rel=0.05)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_batches_that_workers_deliver_together_are_no_stall(num_workers: int) -> None:
    """pytorch/pytorch#19836: one slow batch, then as many fast ones as there are other workers."""
    spread_s = (0.9, 1.1, 1.0)
    waits = {step: 0.8 * spread_s[step % 3] for step in range(0, 200, num_workers)}
    kind = [StepKind.TRACED if step in TRACED else "" for step in range(200)]
    duration_s = [0.1 + waits.get(step, 0.0) for step in range(200)]
    ranks = [rank_of(rank, steps_of(duration_s, kind=kind, loader_s=waits if rank else {})) for rank in (0, 1)]
    log = job_log([msgspec.structs.replace(rank, loader_workers=num_workers) for rank in ranks])
    assert log is not None and log.regular_s == pytest.approx(0.1 + 0.8 / num_workers, rel=0.03)
    trace = TraceBuilder(0, 2)
    for place, number in enumerate(TRACED):
        trace.step(number, 200_000 * place, 200_000).launch("gemm", 200_000 * place, 5, 200_000 * place + 10, 20_000)
    diagnosis = diagnose(attributed(trace), untraced=Untraced(step_s=1e6), log=log)
    assert names(diagnosis)[0] == "data-loading" and "periodic-stall" not in names(diagnosis)
    assert cost_s(diagnosis) == pytest.approx(0.8 / num_workers, rel=0.05)


@pytest.mark.parametrize(("num_measured", "expected_s"), [(19, 0.010), (20, (19 * 0.010 + 0.110) / 20)])
def test_one_late_batch_among_few_measured_steps_is_no_regular_wait(num_measured: int, expected_s: float) -> None:
    """The first ten steps are the warm-up; in the step after it, the batch is 100 ms late, which is no stall."""
    num_steps = 10 + len(TRACED) + num_measured
    waits = dict.fromkeys(range(num_steps), 0.010) | {10: 0.110}
    kind = [StepKind.TRACED if 10 < step <= 10 + len(TRACED) else "" for step in range(num_steps)]
    rank = rank_of(0, steps_of([0.2] * num_steps, kind=kind, loader_s=waits))
    log = job_log([rank])
    assert log is not None and log.is_measured.sum() == num_measured
    trace, at = TraceBuilder(0), 0.0
    for number in range(11, 11 + len(TRACED)):
        trace.step(number, at, 200_000).launch("gemm", at + 150_000, 5, at + 150_010, 30_000)
        at += 200_000
    diagnosis = diagnose(attributed(trace), untraced=Untraced(step_s=1e6), log=log)
    assert cost_s(diagnosis) == pytest.approx(expected_s, rel=0.02)
