"""The step log of a job: alignment, the regular step, and stalls with their cause, rank and cost."""

from __future__ import annotations

import numpy as np
import pytest
from tests.step_log.recorded_ranks import rank_of, steps_of

from flatout.records.job_log import JobLog, StallCause
from flatout.step_log.job_log import job_log


def durations(num: int, stalls: dict[int, float], regular_s: float = 0.010) -> list[float]:
    """Return steps that take the regular time, with 1 % of it more or less, and these stalls on top."""
    return [regular_s * (1.01 if step % 2 else 0.99) + stalls.get(step, 0.0) for step in range(num)]


def log_of(*ranks: object) -> JobLog:
    log = job_log(ranks)  # type: ignore[arg-type]
    assert log is not None
    return log


def total(log: JobLog, cause: StallCause) -> float:
    return sum(stall.excess_s for stall in log.stalls if stall.cause == cause)


def test_one_rank_writes_checkpoints_and_the_other_waits() -> None:
    stalls = dict.fromkeys(range(40, 320, 40), 0.5)
    writer = rank_of(0, steps_of(durations(320, stalls), checkpoint_s=stalls))
    waiter = rank_of(1, steps_of(durations(320, stalls)))
    log = log_of(writer, waiter)
    assert {(stall.cause, stall.rank) for stall in log.stalls} == {(StallCause.CHECKPOINT, 0)}
    assert [stall.step for stall in log.stalls] == list(stalls)
    assert all(stall.waiting_ranks == (1,) for stall in log.stalls)
    assert total(log, StallCause.CHECKPOINT) == pytest.approx(7 * 0.5, rel=0.01)
    assert log.per_step_s(log.stalls) == pytest.approx(7 * 0.5 / 320, rel=0.01)
    assert log.regular_s == pytest.approx(0.010, rel=0.01)
    assert log.step_s == pytest.approx(0.010 + 7 * 0.5 / 320, rel=0.01)


def test_a_rank_that_waits_in_its_next_step_waits_for_the_same_cause() -> None:
    writer = rank_of(0, steps_of(durations(100, {50: 0.5}), checkpoint_s={50: 0.5}))
    waiter = rank_of(1, steps_of(durations(100, {51: 0.5})))
    log = log_of(writer, waiter)
    assert {stall.cause for stall in log.stalls} == {StallCause.CHECKPOINT}
    assert total(log, StallCause.CHECKPOINT) == pytest.approx(0.5, rel=0.01)


def test_a_rank_that_does_not_wait_loses_nothing() -> None:
    writer = rank_of(0, steps_of(durations(100, {50: 0.5}), checkpoint_s={50: 0.5}))
    other = rank_of(1, steps_of(durations(100, {})))
    assert total(log_of(writer, other), StallCause.CHECKPOINT) == pytest.approx(0.25, rel=0.01)


def test_stalls_of_alternating_ranks_are_each_charged_to_their_rank() -> None:
    on_0, on_1 = dict.fromkeys(range(6, 90, 6), 0.2), dict.fromkeys(range(9, 90, 6), 0.2)
    ranks = [rank_of(r, steps_of(durations(90, on_0 | on_1), checkpoint_s=own)) for r, own in enumerate((on_0, on_1))]
    log = log_of(*ranks)
    assert {stall.rank: stall.step % 6 for stall in log.stalls} == {0: 0, 1: 3}
    assert total(log, StallCause.CHECKPOINT) == pytest.approx(0.2 * len(on_0 | on_1), rel=0.01)


@pytest.mark.parametrize(("excess", "num_stalls"), [(0.0045, 0), (0.0056, 1)])
def test_an_excess_without_a_cause_counts_above_half_of_the_regular_step(excess: float, num_stalls: int) -> None:
    log = log_of(*(rank_of(rank, steps_of(durations(100, {50: excess}))) for rank in range(2)))
    assert len(log.stalls) == num_stalls
    assert {stall.rank for stall in log.stalls} <= {None}  # which rank was late cannot be told


@pytest.mark.parametrize(("excess", "num_stalls"), [(0.017, 0), (0.019, 1)])
def test_an_excess_without_a_cause_counts_above_six_standard_deviations(excess: float, num_stalls: int) -> None:
    """Steps of 8, 10 and 12 ms deviate by 2 ms: a standard deviation of 1.4826 x 2 ms."""
    rank = rank_of(0, steps_of([(0.008, 0.010, 0.012)[step % 3] for step in range(100)]))
    rank.steps.duration_s[50] = 0.010 + excess
    log = log_of(rank)
    assert log.spread_s == pytest.approx(1.4826 * 0.002)
    assert len(log.stalls) == num_stalls


def test_a_stall_in_every_other_step_is_not_the_regular_step() -> None:
    stalls = {step: 0.1 for step in range(100) if step % 3}
    log = log_of(rank_of(0, steps_of(durations(100, stalls), checkpoint_s=stalls)))
    assert log.regular_s == pytest.approx(0.010, rel=0.02)
    assert total(log, StallCause.CHECKPOINT) == pytest.approx(0.1 * len(stalls), rel=0.01)


def test_slow_growth_is_the_baseline_and_no_stall() -> None:
    rank = rank_of(0, steps_of(list(np.linspace(0.010, 0.030, 400))))
    log = log_of(rank)
    assert not log.stalls
    assert log.baseline_s[0, 20] == pytest.approx(0.011, rel=0.05)
    assert log.baseline_s[0, 380] == pytest.approx(0.029, rel=0.05)


def test_steps_in_which_the_recorder_worked_count_with_their_own_columns_only() -> None:
    kind = ["first", *[""] * 49, "traced", *[""] * 49]
    rank = rank_of(0, steps_of(durations(100, {0: 2.0, 50: 0.6}), kind, checkpoint_s={50: 0.4}))
    log = log_of(rank)
    assert [(stall.step, stall.is_regular_step) for stall in log.stalls] == [(50, False)]
    assert log.stalls[0].excess_s == pytest.approx(0.4)
    assert log.step_s == pytest.approx(0.010 + 0.4 / 100, rel=0.01)


def test_a_late_batch_is_a_stall_of_data_loading_and_the_usual_wait_is_not() -> None:
    usual = dict.fromkeys(range(100), 0.004)
    rank = rank_of(0, steps_of(durations(100, {30: 0.5}), loader_s=usual | {30: 0.504}))
    log = log_of(rank)
    assert [(stall.step, stall.cause) for stall in log.stalls] == [(30, StallCause.LOADER)]
    assert log.stalls[0].excess_s == pytest.approx(0.5, rel=0.01)


def test_steps_are_aligned_by_number_and_missing_ones_stay_missing() -> None:
    ranks = [rank_of(0, steps_of(durations(50, {}))), rank_of(1, steps_of(durations(45, {}), first=3))]
    log = log_of(*ranks)
    assert log.num_steps == 50
    assert np.isnan(log.duration_s[1, :3]).all() and np.isnan(log.duration_s[1, 48:]).all()
    assert not log.stalls


def test_a_job_without_ordinary_steps_has_no_log() -> None:
    assert job_log([]) is None
    assert job_log([rank_of(0, steps_of([1.0], ["first"]))]) is None


@pytest.mark.parametrize(("retries_at_60", "cause"), [(3.0, StallCause.UNKNOWN), (4.0, StallCause.ALLOCATOR)])
def test_retries_of_the_allocator_between_two_readings_explain_a_stall(retries_at_60: float, cause: StallCause) -> None:
    """The number of retries is read at steps 40 and 60; the stall is in between."""
    steps = steps_of(durations(100, {50: 0.2}), num_alloc_retries={40: 3.0, 60: retries_at_60})
    assert steps.num_alloc_retries is not None
    is_read = np.isin(steps.number, (40, 60))
    steps.num_alloc_retries[~is_read] = np.nan
    assert [(stall.step, stall.cause) for stall in log_of(rank_of(0, steps)).stalls] == [(50, cause)]


def test_an_evaluation_in_most_steps_is_part_of_the_regular_step() -> None:
    evaluation = dict.fromkeys(range(100), 0.005)
    log = log_of(rank_of(0, steps_of(durations(100, evaluation), evaluation_s=evaluation)))
    assert not log.stalls
    assert log.regular_s == pytest.approx(0.015, rel=0.02)


def test_collections_count_even_if_every_step_has_one() -> None:
    collections = dict.fromkeys(range(100), 0.005)
    log = log_of(rank_of(0, steps_of(durations(100, collections), collection_s=collections)))
    assert total(log, StallCause.GARBAGE_COLLECTION) == pytest.approx(0.5, rel=0.02)
    assert log.regular_s == pytest.approx(0.010, rel=0.02)


def test_compilation_in_the_first_step_is_no_stall_and_a_loader_start_is() -> None:
    kind = ["first", *[""] * 99]
    steps = steps_of(durations(100, {0: 3.0}), kind, compilation_s={0: 2.0}, loader_start_s={0: 1.0})
    assert [(stall.step, stall.cause) for stall in log_of(rank_of(0, steps)).stalls] == [(0, StallCause.LOADER_START)]
