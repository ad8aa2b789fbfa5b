"""A candidate that is refused by its losses gets one trial of the job that shows how far float noise carries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.trial import unstable
from tests.trial.training import NUM_CHECKED
from tests.tune.simulated import BUCKET, COMMUNICATION, SOCKETS, SimulatedRunner, tuned

from flatout.records.change import ChangeSet
from flatout.records.trial import GradientNorms, TrialResult
from flatout.records.tuning import TuneResult
from flatout.tune.result import is_better


class Carrying(SimulatedRunner):
    """A job whose losses rise at first, and a candidate that adds up in another order, or updates wrongly too."""

    def __init__(self, *, scale: float = 1.0, **how: Any) -> None:
        super().__init__({SOCKETS: 2.0}, costs=COMMUNICATION, **how)
        self._scale = scale
        self.disturbed: list[str] = []

    def trial(self, changes: ChangeSet, num_steps: int, place: str = "", **variation: bool) -> TrialResult:
        made = super().trial(changes, num_steps, place, **variation)
        how: dict[str, float] = {}
        if made.has_other_rounding:
            self.disturbed.append(changes.name)
            how = {"disturbed": 2.0**-8, "noise_seed": 50}
        elif changes.changes:
            how = {"float_noise": 3e-4, "scale": self._scale, "noise_seed": made.index}
        trained = unstable.train(**how)  # type: ignore[arg-type]
        norms = GradientNorms(num_parameters=1, norms=trained.norms[:NUM_CHECKED])
        made = msgspec.structs.replace(made, losses=trained.losses, gradients=(norms,))
        self.made[-1] = (changes.name, made)
        return made


def outcome(result: TuneResult, name: str) -> str:
    return next(one.outcome for one in result.tried if one.name == name)


def test_a_change_of_a_job_that_carries_float_noise_far_is_adopted_after_one_trial_more() -> None:
    runner = Carrying()
    result = tuned(runner, max_rounds=1)
    assert is_better(result) and {change.name for change in result.tuning.changes.changes} == {SOCKETS}
    assert runner.disturbed == ["baseline"], "once, for all candidates"


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_change_that_updates_wrongly_is_refused_all_the_same(scale: float) -> None:
    result = tuned(Carrying(scale=scale), max_rounds=1)
    assert not is_better(result) and outcome(result, SOCKETS) == "unsafe"


def test_without_time_for_two_trials_the_refusal_stands() -> None:
    """A trial takes 25 s: two of the job and one of the candidate leave too little for another two."""
    runner = Carrying()
    result = tuned(runner, budget_s=115.0, max_rounds=1)
    assert not runner.disturbed and not is_better(result)
    assert outcome(result, SOCKETS) == "unsafe"


def test_a_job_whose_losses_agree_needs_no_such_trial() -> None:
    class Stable(SimulatedRunner):
        def trial(self, changes: ChangeSet, num_steps: int, place: str = "", **variation: bool) -> TrialResult:
            assert "other_rounding" not in variation
            return super().trial(changes, num_steps, place, **variation)

    assert is_better(tuned(Stable({SOCKETS: 2.0, BUCKET: 1.1}), max_rounds=1))
