"""The measured steps of a trial as arrays: their times, their numbers in the job, and the spells that hooks saw.

In: a `TrialResult`. Out: a `Window`. Journals of earlier versions have neither numbers nor spells; some have at least
the steps before which a loader ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.trial import SpellKind, StepSpell, TrialResult
from flatout.verdict.periods import Numbers

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Window:
    """The steps of one trial. Without numbers in the job, they are numbered from 0."""

    def __init__(self, trial: TrialResult) -> None:
        self.index = trial.index
        self.arm = trial.arm
        self.step_s: Floats = np.asarray(trial.step_s, dtype=np.float64)
        self.is_numbered = trial.first_step is not None
        self.typical_firsts = trial.typical_firsts
        self.steps_per_epoch = trial.steps_per_epoch
        self.number: Numbers = _numbers(trial)
        self.has_spells = trial.spells is not None or trial.epoch_ends is not None
        self._by_kind = _by_kind(trial, self.number)

    @property
    def num_steps(self) -> int:
        return len(self.step_s)

    @property
    def num_recorded(self) -> int:
        """Return the steps in which hooks saw spells: from the start of the job, if the steps are numbered."""
        return int(self.number[-1]) if self.is_numbered else self.num_steps

    @property
    def kinds(self) -> tuple[SpellKind, ...]:
        return tuple(self._by_kind)

    def spells(self, kind: SpellKind) -> dict[int, float]:
        """Return the seconds of this kind, by the number of the step, also of the warm-up."""
        return self._by_kind.get(kind, {})

    def has(self, numbers: Sequence[int] | Numbers) -> Flags:
        """Return which of the measured steps have these numbers."""
        return np.isin(self.number, np.asarray(numbers, dtype=np.int64))


def _numbers(trial: TrialResult) -> Numbers:
    length = len(trial.step_s)
    first = trial.first_step or 0
    if not trial.unmeasured_steps:
        return np.arange(first, first + length)
    numbers = np.arange(first, first + length + len(trial.unmeasured_steps))
    return numbers[~np.isin(numbers, trial.unmeasured_steps)][:length]


def _by_kind(trial: TrialResult, number: Numbers) -> dict[SpellKind, dict[int, float]]:
    by_kind: dict[SpellKind, dict[int, float]] = {}
    if trial.spells is None:
        ends = [int(number[place]) for place in trial.epoch_ends or () if place < len(number)]
        return {"epoch_end": dict.fromkeys(ends, 0.0)} if ends else {}
    for spell in trial.spells:
        _add(by_kind, spell)
    return by_kind


def _add(by_kind: dict[SpellKind, dict[int, float]], spell: StepSpell) -> None:
    seconds = by_kind.setdefault(spell.kind, {})
    seconds[spell.step] = seconds.get(spell.step, 0.0) + spell.seconds
