"""What a stall costs in the long run, whether a short profile held one of them more or less."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flatout.records.diagnosis import Diagnosis, Finding, JobSummary
from flatout.tune.long_run import in_the_long_run

REGULAR_S, BOUNDARY_S = 0.176, 2.4  # the boundary in addition, every 15 steps
TRUE_S = REGULAR_S + BOUNDARY_S / 15


def stall(name: str, steps: list[int], num_steps: int, extra_s: float, **evidence: Any) -> Finding:
    total_s = extra_s * len(steps)
    return finding(
        name,
        total_s / num_steps,
        num_stalled_steps=len(steps),
        num_steps=num_steps,
        total_s=total_s,
        steps=steps,
        **({"period_steps": None} | evidence),
    )


def finding(name: str, cost_s: float, **evidence: Any) -> Finding:
    return Finding(
        code="F00",
        name=name,
        title="",
        ranks=(0,),
        cost_s_per_step=cost_s,
        share_of_step=0.0,
        evidence=evidence,
        changes=(),
        safety="exact",
        confidence="high",
    )


def diagnosis(*findings: Finding, num_steps: int, first_wait_s: float = 0.0, regular_s: float = REGULAR_S) -> Diagnosis:
    stalls_s = sum(one.cost_s_per_step for one in findings if "num_stalled_steps" in one.evidence)
    job = JobSummary(
        num_ranks=2,
        world_size=2,
        missing_ranks=(),
        device=None,
        num_steps=5,
        step_s=regular_s,
        num_recorded_steps=num_steps,
        traced_share=regular_s / (regular_s + stalls_s),
        mean_step_s=regular_s + stalls_s,
        first_wait_s=first_wait_s,
    )
    return Diagnosis(job=job, ranks=(), blame=(), findings=findings, data_quality=())


@pytest.mark.parametrize(("num_steps", "ends"), [(29, [15]), (31, [15, 30]), (44, [15, 30]), (46, [15, 30, 45])])
def test_one_boundary_more_or_less_in_the_profile_changes_nothing(num_steps: int, ends: list[int]) -> None:
    loading = finding("data-loading", 0.1)
    found = in_the_long_run(
        diagnosis(stall("epoch-boundary", ends, num_steps, BOUNDARY_S), loading, num_steps=num_steps), 15
    )
    assert found.job.mean_step_s == pytest.approx(TRUE_S)
    assert found.findings[0].cost_s_per_step == pytest.approx(BOUNDARY_S / 15)
    assert found.findings[0].share_of_step == pytest.approx(BOUNDARY_S / 15 / TRUE_S)
    assert found.findings[1].share_of_step == pytest.approx(0.1 / TRUE_S)
    assert found.job.traced_share == pytest.approx(REGULAR_S / TRUE_S)


def test_the_first_boundary_shows_the_epoch_of_a_loader_without_a_length() -> None:
    found = in_the_long_run(diagnosis(stall("epoch-boundary", [15], 20, BOUNDARY_S), num_steps=20), None)
    assert found.job.mean_step_s == pytest.approx(TRUE_S)


def test_a_checkpoint_has_its_own_period() -> None:
    saves = stall("checkpoint-stall", [20, 40, 60], 75, 1.0, period_steps=20)
    found = in_the_long_run(diagnosis(saves, num_steps=75), 15)
    assert found.findings[0].cost_s_per_step == pytest.approx(1.0 / 20)


def test_a_single_stall_of_unknown_cause_counts_as_recorded() -> None:
    found = in_the_long_run(diagnosis(stall("periodic-stall", [17], 20, 1.0), num_steps=20), 15)
    assert found.findings[0].cost_s_per_step == pytest.approx(1.0 / 20)


def test_the_first_steps_wait_is_not_part_of_the_long_run() -> None:
    """The wait of step 0 is in the finding, and as long as any other."""
    steps = stall("epoch-boundary", [0, 15, 30], 44, BOUNDARY_S, period_steps=15)
    found = in_the_long_run(diagnosis(steps, num_steps=44, first_wait_s=BOUNDARY_S), 15)
    assert found.job.mean_step_s == pytest.approx(TRUE_S)
    assert found.job.first_wait_s == 0.0
    # Without a finding that has it, it is in the mean step only.
    job = diagnosis(num_steps=44, regular_s=REGULAR_S + 1.0 / 44, first_wait_s=1.0)
    assert in_the_long_run(job, None).job.mean_step_s == pytest.approx(REGULAR_S)


@pytest.mark.parametrize(("period", "is_believed"), [(4, True), (3, False)])
def test_a_period_that_contradicts_the_number_of_stalls_is_not_believed(period: int, is_believed: bool) -> None:
    found = in_the_long_run(diagnosis(stall("periodic-stall", [16], 16, 1.0, period_steps=period), num_steps=16), None)
    assert found.findings[0].cost_s_per_step == pytest.approx(1 / period if is_believed else 1 / 16)


@pytest.mark.parametrize(("num_stalls", "is_believed"), [(4, True), (5, False)])
def test_more_stalls_than_four_times_those_of_the_period_do_not_have_it(num_stalls: int, is_believed: bool) -> None:
    steps = stall("periodic-stall", list(range(1, num_stalls + 1)), 20, 1.0, period_steps=20)
    cost_s = in_the_long_run(diagnosis(steps, num_steps=20), None).findings[0].cost_s_per_step
    assert cost_s == pytest.approx(1 / 20 if is_believed else num_stalls / 20)


def test_a_plain_trace_has_no_long_run() -> None:
    plain = diagnosis(num_steps=20)
    plain = msgspec.structs.replace(plain, job=msgspec.structs.replace(plain.job, mean_step_s=None))
    assert in_the_long_run(plain, 15) is plain
