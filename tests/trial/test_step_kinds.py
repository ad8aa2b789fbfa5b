"""Which steps of a trial had work other than training, and their numbers in the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from tests.trial.recordings import rank

from flatout.records.recording import RankRecording
from flatout.records.trial import StepSpell
from flatout.trial.step_kinds import common_steps, step_numbers, step_spells

TIMES = ("loader_start_s", "evaluation_s", "collection_s", "compilation_s", "logging_s", "num_loader_ends")


def hooked(
    durations_s: Sequence[float], *, number: int = 0, settled: int = 2, **columns: Mapping[int, float]
) -> RankRecording:
    """A rank whose columns are 0 but in the given steps."""
    made = rank(number, durations_s, settled=settled)
    values = {name: np.zeros(len(durations_s)) for name in (*TIMES, "checkpoint_s")}
    for name, by_step in columns.items():
        for step, value in by_step.items():
            values[name][step] = value
    return msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, **values))


def test_steps_are_numbered_from_the_start_of_the_job_and_gaps_are_kept() -> None:
    kind = ("first", "", "", "flops", "", "")
    assert step_numbers([rank(0, (9.0, 0.1, 0.1, 7.0, 0.1, 0.1), settled=1, kind=kind)]) == (1, (3,))


def test_a_trial_without_measured_steps_has_no_numbers() -> None:
    assert step_numbers([rank(0, settled=None)]) == (None, ())
    assert common_steps([]) == []


def test_work_in_the_warm_up_counts_and_that_of_the_first_step_does_not() -> None:
    one = hooked((9.0,) + (0.1,) * 9, settled=6, evaluation_s={0: 3.0, 3: 2.0}, num_loader_ends={3: 1})
    assert step_spells([one]) == (StepSpell(3, "evaluation", 2.0), StepSpell(3, "epoch_end", 0.0))


def test_the_time_is_that_of_the_rank_that_took_longest() -> None:
    """Rank 0 saves a checkpoint, and the other rank waits for it."""
    ranks = [hooked((0.1,) * 10, checkpoint_s={5: 1.5}), hooked((0.1,) * 10, number=1)]
    assert step_spells(ranks) == (StepSpell(5, "checkpoint", 1.5),)


@pytest.mark.parametrize(("seconds", "is_kept"), [(0.0021, True), (0.0019, False)])
def test_work_below_two_percent_of_a_step_does_not_make_it_differ(seconds: float, is_kept: bool) -> None:
    assert bool(step_spells([hooked((0.1,) * 10, logging_s={4: seconds})])) == is_kept


@pytest.mark.parametrize(("num_steps", "is_kept"), [(5, True), (6, False)])
def test_what_most_steps_have_is_part_of_every_step(num_steps: int, is_kept: bool) -> None:
    found = step_spells([hooked((0.1,) * 10, logging_s=dict.fromkeys(range(1, num_steps + 1), 0.05))])
    assert found is not None
    assert len(found) == (num_steps if is_kept else 0)


def test_a_recorder_that_was_too_old_saw_nothing_rather_than_no_work() -> None:
    assert step_spells([rank(0)]) is None
    assert step_spells([]) is None
