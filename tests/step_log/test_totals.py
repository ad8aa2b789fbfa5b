"""Totals of a recording: what counts of each step, worked out by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.trial.recordings import rank

from flatout.profile.measure import measure
from flatout.records.recording import RankRecording
from flatout.step_log.totals import StepTotals, step_totals

REGULAR_S = 0.010


def job_rank(
    number: int = 0,
    *,
    num_steps: int = 100,
    settled: int = 10,
    longer_s: dict[int, float] | None = None,
    loader_s: dict[int, float] | None = None,
    checkpoint_s: dict[int, float] | None = None,
    kinds: dict[int, str] | None = None,
    num_samples: float = 16.0,
) -> RankRecording:
    """A rank with steps of 10 ms; what it does longer, and the loader's and checkpoints' part of it, by step."""
    longer_s, loader_s, checkpoint_s = longer_s or {}, loader_s or {}, checkpoint_s or {}
    extra = [sum(column.get(step, 0.0) for column in (longer_s, loader_s, checkpoint_s)) for step in range(num_steps)]
    kind = [(kinds or {}).get(step, "first" if step == 0 else "") for step in range(num_steps)]
    made = rank(number, [REGULAR_S + seconds for seconds in extra], settled=settled, kind=kind)
    steps = msgspec.structs.replace(
        made.steps,
        loader_s=np.array([loader_s.get(step, 0.0) for step in range(num_steps)]),
        checkpoint_s=np.array([checkpoint_s.get(step, 0.0) for step in range(num_steps)]),
        num_samples=np.full(num_steps, num_samples),
    )
    return msgspec.structs.replace(made, steps=steps, untraced_step_s=REGULAR_S, num_untraced_steps=5)


def totals(*ranks: RankRecording) -> StepTotals:
    found = step_totals(ranks)
    assert found is not None
    return found


def test_a_step_that_stalls_now_and_then_counts_with_its_share() -> None:
    """Every twentieth step waits a second: 1 s / 20 a step, which no median shows."""
    late = dict.fromkeys(range(0, 100, 20), 1.0)
    found = totals(job_rank(0, loader_s=late), job_rank(1, longer_s=late))  # rank 1 waits for rank 0
    assert found.num_steps == 100
    assert found.mean_step_s == pytest.approx(REGULAR_S + 1.0 / 20)
    assert found.regular_step_s == pytest.approx(REGULAR_S)
    assert found.first_wait_s == pytest.approx(1.0)


def test_compilation_in_the_first_step_and_the_warm_up_does_not_count() -> None:
    found = totals(job_rank(longer_s={0: 30.0, 1: 5.0, 9: 2.0}))
    assert found.mean_step_s == pytest.approx(REGULAR_S)
    assert found.first_wait_s == 0


def test_a_slow_first_epoch_counts_whole_though_the_warm_up_is_part_of_it() -> None:
    """300 steps, the first 100 of which take twice as long, 40 of them before the step times were found stable."""
    found = totals(job_rank(num_steps=300, settled=40, longer_s=dict.fromkeys(range(100), REGULAR_S)))
    assert found.mean_step_s == pytest.approx(4 / 3 * REGULAR_S, rel=0.03)


def test_a_step_counts_from_the_end_of_the_warm_up() -> None:
    """Both sides of the boundary: step 9 is warm-up, step 10 is the first of 90 measured steps."""
    assert totals(job_rank(longer_s={9: 0.9})).mean_step_s == pytest.approx(REGULAR_S)
    assert totals(job_rank(longer_s={10: 0.9})).mean_step_s == pytest.approx(REGULAR_S + 0.9 / 90)


def test_the_recorders_own_work_does_not_count() -> None:
    kinds = {20: "flops", 21: "recovery", 23: "prepare", 24: "traced", 25: "recovery"}
    assert totals(job_rank(longer_s=dict.fromkeys(kinds, 0.5), kinds=kinds)).mean_step_s == pytest.approx(REGULAR_S)


def test_a_stall_in_a_step_of_the_recorder_counts() -> None:
    """A loader and a checkpoint take their time, whatever the recorder does in the rest of the step."""
    kinds = {20: "flops", 40: "traced"}
    found = totals(job_rank(loader_s={20: 1.0}, checkpoint_s={40: 2.0}, longer_s={20: 0.3, 40: 0.3}, kinds=kinds))
    assert found.mean_step_s == pytest.approx(REGULAR_S + 3.0 / 100)


def test_a_loader_that_is_always_slow_is_no_stall() -> None:
    """Half of each step is loading: the regular step has it, and nothing is counted twice."""
    found = totals(job_rank(loader_s=dict.fromkeys(range(100), REGULAR_S)))
    assert found.mean_step_s == pytest.approx(2 * REGULAR_S)
    assert found.regular_step_s == pytest.approx(2 * REGULAR_S)


def test_steps_that_grow_have_a_mean_and_a_median_of_all_of_them() -> None:
    growth = {step: step * 0.001 for step in range(100)}
    found = totals(job_rank(longer_s=growth))
    assert found.mean_step_s == pytest.approx(REGULAR_S + 0.001 * 99 / 2, rel=0.04)  # the warm-up by its baseline
    assert found.regular_step_s == pytest.approx(REGULAR_S + 0.001 * (10 + 99) / 2)


def test_a_rank_that_ended_early_counts_in_the_steps_that_it_has() -> None:
    found = totals(job_rank(0), job_rank(1, num_steps=50))
    assert found.num_steps == 100
    assert found.mean_step_s == pytest.approx(REGULAR_S)


def test_without_a_step_after_the_warm_up_its_stable_end_counts() -> None:
    found = totals(job_rank(num_steps=12, settled=12, longer_s={6: 1.0}))
    assert found.mean_step_s == pytest.approx(REGULAR_S)  # steps 7 to 11
    found = totals(job_rank(num_steps=12, settled=12, longer_s={7: 1.0}))
    assert found.mean_step_s == pytest.approx(REGULAR_S + 1.0 / 5)


def test_a_job_whose_warm_up_was_not_over_has_no_totals() -> None:
    assert step_totals([msgspec.structs.replace(job_rank(), settled_step=None)]) is None
    assert step_totals([]) is None


def test_rates_are_totals_and_the_regular_step_has_its_own() -> None:
    """Two ranks process 32 samples in 60 ms on average, and in 10 ms in a regular step."""
    late = dict.fromkeys(range(0, 100, 20), 1.0)
    measured = measure([job_rank(0, loader_s=late), job_rank(1, longer_s=late)])
    assert measured.samples_per_step == 32
    assert measured.samples_per_s == pytest.approx(32 / 0.060)
    assert measured.regular_samples_per_s == pytest.approx(32 / 0.010)
    assert (measured.step_s, measured.mean_step_s) == pytest.approx((0.010, 0.060))


def test_an_mfu_is_of_all_steps_too() -> None:
    late = dict.fromkeys(range(0, 100, 20), 1.0)
    ranks = [
        msgspec.structs.replace(each, flops_by_type={"fp32": 1e9})
        for each in (job_rank(0, loader_s=late), job_rank(1, longer_s=late))
    ]
    measured = measure(ranks, peaks={"fp32": 1e12})  # a millisecond at the peak
    assert measured.mfu == pytest.approx(0.001 / 0.060)
    assert measured.regular_mfu == pytest.approx(0.001 / 0.010)
