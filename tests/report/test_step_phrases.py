"""How a step and its parts are said."""

from __future__ import annotations

import pytest

from flatout.records.step_time import StepTime, WorkTime
from flatout.report.step_phrases import step_sentences, step_words, work_name


def epoch(extra_s: float, period: float = 15.0) -> WorkTime:
    return WorkTime(kinds=("epoch_end", "evaluation", "checkpoint"), extra_s=extra_s, period_steps=period)


BEFORE = StepTime(step_s=0.349, regular_s=0.176, work=(epoch(2.6),))
AFTER = StepTime(step_s=0.21, regular_s=0.063, work=(epoch(2.2),))


def test_both_arms_are_compared_part_by_part() -> None:
    assert step_sentences(BEFORE, AFTER) == (
        "Regular step: 176 ms -> 63.0 ms.",
        "Each epoch's boundary (evaluation, checkpoint), every 15 steps: 2.60 s -> 2.20 s more.",
    )


def test_without_an_accepted_change_the_parts_of_the_baseline_are_said() -> None:
    assert step_sentences(BEFORE, None)[0] == "Regular step: 176 ms."


def test_a_job_whose_steps_are_alike_has_no_parts() -> None:
    assert step_sentences(StepTime(step_s=0.1, regular_s=0.1), StepTime(step_s=0.05, regular_s=0.05)) == ()
    assert step_sentences(None, None) == ()


def test_work_that_a_change_removes_or_makes_rarer() -> None:
    rarer = StepTime(step_s=0.2, regular_s=0.17, work=(epoch(2.6, 60.0),))
    assert "every 15 steps -> every 60 steps: 2.60 s -> 2.60 s" in step_sentences(BEFORE, rarer)[1]
    gone = StepTime(step_s=0.17, regular_s=0.17)
    assert "every 15 steps: 2.60 s -> 0 s" in step_sentences(BEFORE, gone)[1]


@pytest.mark.parametrize(("extra_s", "is_said"), [(0.016, True), (0.014, False)])
def test_work_below_one_percent_of_the_step_is_not_said(extra_s: float, is_said: bool) -> None:
    step = StepTime(step_s=0.1, regular_s=0.1, work=(epoch(extra_s),))
    assert bool(step_sentences(step, None)) == is_said


def test_what_was_not_measured_is_said() -> None:
    step = StepTime(step_s=0.1, regular_s=0.1, unknown=("epoch_end",))
    assert step_sentences(step, None) == (
        "The end of an epoch was not measured in each arm: longer trials would include it.",
    )
    other = StepTime(step_s=0.1, regular_s=0.1, unknown=("unknown", "evaluation"))
    assert step_sentences(other, None) == (
        "Not measured in each arm: evaluation.",
        "Long steps of unknown cause are not part of a step, because how often they come is unknown.",
    )
    assert len(step_sentences(step, other)) == 3


def test_long_steps_whose_frequency_is_unknown_are_told_apart_from_those_that_return() -> None:
    long_steps = WorkTime(kinds=("unknown",), extra_s=0.2, period_steps=8.0)
    step = StepTime(step_s=0.125, regular_s=0.1, work=(long_steps,), unknown=("unknown",))
    assert step_sentences(step, None)[1:] == (
        "Each long step of unknown cause, every 8 steps: 200 ms more.",
        "Other long steps of unknown cause are not part of a step, because how often they come is unknown.",
    )


def test_the_live_log_has_the_same_number_as_the_report() -> None:
    assert step_words(BEFORE) == "349 ms per step: 176 ms, and 2.60 s more every 15 steps"
    assert step_words(StepTime(step_s=0.1, regular_s=0.1)) == "100 ms per step"
    assert step_words(StepTime(step_s=0.1, regular_s=0.1, unknown=("epoch_end",))) == "100 ms per regular step"


def test_a_period_that_is_a_mean_keeps_a_decimal() -> None:
    work = WorkTime(kinds=("collection",), extra_s=0.5, period_steps=13.4)
    assert step_sentences(StepTime(step_s=0.1, regular_s=0.06, work=(work,)), None)[1] == (
        "Each garbage collection, every 13.4 steps: 500 ms more."
    )


def test_names_of_work() -> None:
    assert work_name(("epoch_end", "loader_start")) == "epoch's boundary"
    assert work_name(("evaluation", "checkpoint")) == "evaluation and checkpoint"
