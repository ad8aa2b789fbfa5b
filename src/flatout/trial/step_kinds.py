"""Number a trial's measured steps, and say which steps had work other than training: evaluations, checkpoints, ...

In: the ranks of a trial's recording. Out: the fields of a `TrialResult` by which windows are compared. Work in the
warm-up counts too: it shows how often the work returns, also where that is longer than the window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatout.records.recording import RankRecording, Steps
from flatout.records.trial import SpellKind, StepSpell

MIN_SHARE = 0.02  # of a median step: shorter work does not make a step differ
MAX_SHARE_OF_STEPS = 0.5  # what more of the steps have is part of every step

_TIMES: tuple[tuple[SpellKind, str], ...] = (
    ("loader_start", "loader_start_s"),
    ("evaluation", "evaluation_s"),
    ("checkpoint", "checkpoint_s"),
    ("collection", "collection_s"),
    ("compilation", "compilation_s"),
    ("logging", "logging_s"),
)


class StepNumbers(NamedTuple):
    """The numbers of the measured steps in the job: those from `first` on, without `unmeasured`."""

    first: int | None
    unmeasured: tuple[int, ...]


def common_steps(ranks: Sequence[RankRecording]) -> list[int]:
    """Return the numbers of the measured steps that all ranks have, in order."""
    numbers = [set(rank.steps.number[measured_rows(rank)].tolist()) for rank in ranks]
    return sorted(set.intersection(*numbers)) if numbers else []


def measured_rows(rank: RankRecording) -> NDArray[np.bool_]:
    """Return which rows of the rank's steps count: the ordinary ones after the warm-up; none if that never ended."""
    if rank.settled_step is None:
        return np.zeros(len(rank.steps.number), dtype=np.bool_)
    return np.asarray(rank.steps.is_ordinary & (rank.steps.number >= rank.settled_step))


def step_numbers(ranks: Sequence[RankRecording]) -> StepNumbers:
    numbers = common_steps(ranks)
    if not numbers:
        return StepNumbers(None, ())
    absent = set(range(numbers[0], numbers[-1])) - set(numbers)
    return StepNumbers(numbers[0], tuple(sorted(absent)))


def step_spells(ranks: Sequence[RankRecording]) -> tuple[StepSpell, ...] | None:
    """Return the work in each step after the first, by step; None if a recorder was too old to record it."""
    if not ranks or any(rank.steps.num_loader_ends is None for rank in ranks):
        return None
    spells = [spell for kind, column in _TIMES for spell in _longest(ranks, kind, column)]
    spells += _epoch_ends(ranks)
    num_steps = max(len(rank.steps.number) for rank in ranks)
    return tuple(sorted(_rare(spells, num_steps), key=lambda spell: spell.step))


def _longest(ranks: Sequence[RankRecording], kind: SpellKind, column: str) -> list[StepSpell]:
    """Return the steps with work of a kind, with the time on the rank that it took longest: the others wait for it."""
    seconds: dict[int, float] = defaultdict(float)
    for rank in ranks:
        values = getattr(rank.steps, column)
        if values is None:
            continue
        is_long = (values >= MIN_SHARE * _median_step_s(rank.steps)) & (values > 0) & (rank.steps.number > 0)
        for number, value in zip(rank.steps.number[is_long].tolist(), values[is_long].tolist(), strict=True):
            seconds[number] = max(seconds[number], value)
    return [StepSpell(number, kind, value) for number, value in seconds.items()]


def _median_step_s(steps: Steps) -> float:
    ordinary = steps.duration_s[steps.is_ordinary]
    return float(np.median(ordinary)) if len(ordinary) else 0.0


def _epoch_ends(ranks: Sequence[RankRecording]) -> list[StepSpell]:
    numbers: set[int] = set()
    for rank in ranks:
        ends = rank.steps.num_loader_ends
        assert ends is not None
        numbers.update(rank.steps.number[(ends > 0) & (rank.steps.number > 0)].tolist())
    return [StepSpell(number, "epoch_end", 0.0) for number in numbers]


def _rare(spells: Sequence[StepSpell], num_steps: int) -> list[StepSpell]:
    """Return the spells of the kinds that most steps do not have."""
    count: dict[SpellKind, int] = defaultdict(int)
    for spell in spells:
        count[spell.kind] += 1
    return [spell for spell in spells if count[spell.kind] <= MAX_SHARE_OF_STEPS * num_steps]
