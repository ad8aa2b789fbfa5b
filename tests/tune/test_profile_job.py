"""The profile as one of the trials of its job: what it saves, and when it does not count."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.tune.simulated import WORKERS, SimulatedRunner, tuned

import flatout.tune.profile_job as profile_job_module
from flatout.errors import FlatoutError, NotTracedError, TracedTooLateError
from flatout.records.change import ChangeSet
from flatout.records.stop_rule import StopRule
from flatout.records.trial import StepSpell
from flatout.records.tuning import TuningEnd
from flatout.tune.options import TuneOptions
from flatout.tune.profiled import CountedProfile, Profiled
from flatout.tune.progress import NOTHING, Progress, Setup
from flatout.tune.result import is_better


class Counting(SimulatedRunner):
    """A job whose profiles are as good as trials, where they are given a rule."""

    def __init__(self, speedups: dict[str, float], *, is_as_good: bool = True) -> None:
        super().__init__(speedups)
        self._is_as_good = is_as_good
        self.counted: list[CountedProfile | None] = []
        self.profiled_after: list[int] = []  # trials that ran before each profile that counts as one

    @property
    def rules(self) -> list[StopRule | None]:
        return [None if one is None else one.rule for one in self.counted]

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        self.counted.append(counted)
        profiled = super().profile(changes)
        if counted is None or not self._is_as_good:
            return profiled
        self.trial(changes, counted.rule.min_steps, other_samples=counted.has_other_samples)
        _, trial = self.made.pop()
        self.profiled_after.append(len(self.made))
        trial = msgspec.structs.replace(trial, peak_memory_bytes=None, gradients=())
        return msgspec.structs.replace(profiled, trial=trial)


def first_trials(runner: SimulatedRunner) -> int:
    """Return how many trials of the unchanged job ran before the first of a change."""
    names = runner.names()
    return next(place for place, name in enumerate(names) if name != "baseline")


@pytest.mark.parametrize(("is_as_good", "num_baselines"), [(True, 2), (False, 3)])
def test_a_profile_that_is_as_good_as_a_trial_saves_one(is_as_good: bool, num_baselines: int) -> None:
    runner = Counting({WORKERS: 1.4}, is_as_good=is_as_good)
    result = tuned(runner)
    assert first_trials(runner) == num_baselines
    assert result.floor is not None and result.floor.num_trials >= 3
    assert result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"
    assert result.num_trials == runner.num_trials  # that of the profile is one of them
    assert result.baseline_peak_memory_bytes == 1000  # which a profile does not measure
    assert result.tuned_peak_memory_bytes == 1000


def test_a_profile_measures_as_long_as_the_trials_of_its_job() -> None:
    runner = Counting({WORKERS: 1.4})
    tuned(runner, num_steps=25)
    assert [rule.min_steps for rule in runner.rules if rule is not None] == [25] * len(runner.rules)


def test_memory_is_compared_by_trials_alone() -> None:
    """What a trace needs is in the peak of a profile."""

    def ends(index: int, changes: ChangeSet) -> dict[str, Any]:
        return {"peak_memory_bytes": 1000 - 100 * len(changes.changes)}

    runner = Counting({})
    runner._ends = ends
    tuned(runner, objective="peak_memory_bytes", allowed_safety="rounding")
    assert runner.rules and set(runner.rules) == {None}


def test_a_budget_of_trials_that_is_used_up_leaves_none_for_a_profile() -> None:
    runner = Counting({})
    result = tuned(runner, max_trials=2)
    assert runner.num_trials == 2 and result.end.ended_by == "trial_budget"
    assert set(runner.rules) <= {None}


@pytest.mark.parametrize(("max_trials", "is_counted"), [(13, False), (14, True)])
def test_of_few_trials_none_is_spent_on_the_profile(max_trials: int, is_counted: bool) -> None:
    """With fewer than twelve left after the first one, two baselines are enough, and the others are for candidates."""
    runner = Counting({})
    tuned(runner, max_trials=max_trials, max_rounds=1)
    assert (runner.rules[0] is not None) == is_counted


@pytest.mark.parametrize(("budget_s", "is_short"), [(140.0, True), (800.0, False)])
def test_a_budget_of_few_trials_has_its_profile_as_the_second(budget_s: float, is_short: bool) -> None:
    """A trial takes some 22 s: after one, 140 s leave five and a profile, which may not show that something is 2x."""
    runner = Counting({WORKERS: 1.9})
    result = tuned(runner, budget_s=budget_s, max_rounds=1)
    first = runner.counted[0]
    assert first is not None and first.is_coarse == is_short
    assert (runner.profiled_after[0] == 1) == is_short
    assert result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"


def test_a_profile_that_is_the_second_trial_draws_other_samples() -> None:
    """Its losses show how far those of a changed loader may be off, as the second trial's do."""
    runner = Counting({WORKERS: 1.9})
    runner._ends = lambda index, changes: {"loader_workers": 2}
    tuned(runner, budget_s=140.0, max_rounds=1)
    assert [one.has_other_samples for one in runner.counted if one is not None] == [True]


class EndedByTheBudget(SimulatedRunner):
    """A job that is still being traced when the budget ends."""

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        self.now_s = 1e6
        raise FlatoutError("the job could not be traced: the command was ended by signal 15")


def test_a_budget_that_ends_during_the_profile_ends_the_tuning_and_is_no_error() -> None:
    result = tuned(EndedByTheBudget({WORKERS: 1.4}), budget_s=600.0)
    assert result.end == TuningEnd(ended_by="time_budget", limit=600.0, interrupts="profile")
    assert result.num_trials >= 2 and not result.tuning.changes.changes


class TooLate(Counting):
    """A job that is ended before it is traced, since other jobs use the cores: the first times, or always."""

    def __init__(self, *, num_late: int, takes_s: float) -> None:
        super().__init__({WORKERS: 1.4})
        self._num_late, self._takes_s = num_late, takes_s
        self.num_tried = 0

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        self.num_tried += 1
        if self.num_tried <= self._num_late:
            self.now_s += self._takes_s
            raise TracedTooLateError("the job could not be traced within 60 s, and was ended", hint="see output.log")
        return super().profile(changes, counted)


def test_a_profile_that_takes_too_long_once_is_made_again() -> None:
    runner = TooLate(num_late=1, takes_s=60.0)
    result = tuned(runner, budget_s=3000.0, max_rounds=1)
    assert runner.num_tried >= 2 and is_better(result)


def test_a_job_that_always_takes_too_long_to_be_traced_ends_the_tuning_and_keeps_its_trials() -> None:
    result = tuned(TooLate(num_late=99, takes_s=60.0), budget_s=3000.0)
    assert result.end.ended_by == "never_profiled" and result.is_cut_short
    assert result.num_trials >= 2 and result.baseline_step is not None
    (note,) = (note for note in result.notes if "no change was tried" in note)
    assert "within 60 s" in note and "output.log" in note


def test_a_profile_that_is_ended_shortly_before_the_budget_is_over_ends_the_tuning_with_it() -> None:
    """What is left then is too little for another try."""
    runner = TooLate(num_late=99, takes_s=540.0)
    result = tuned(runner, budget_s=600.0)
    assert runner.num_tried == 1 and runner.spent_s() < 600.0
    assert (result.end.ended_by, result.end.limit, result.end.interrupts) == ("time_budget", 600.0, "profile")


class Short(Counting):
    """A job that ends before the trace if a profile first counts as many steps as a trial."""

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        if counted is not None:
            self.counted.append(counted)
            raise NotTracedError("the job could not be traced: the job ended before the traced steps")
        return super().profile(changes)


def test_a_job_that_is_too_short_for_a_trial_before_the_trace_is_profiled_without() -> None:
    runner = Short({WORKERS: 1.4})
    result = tuned(runner, max_rounds=1)
    assert [rule is None for rule in runner.rules[:2]] == [False, True]
    assert result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"


def test_the_profile_says_which_first_spells_are_like_the_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    spells = [StepSpell(step=step, kind="evaluation", seconds=seconds) for step, seconds in ((15, 5.4), (30, 5.6))]
    monkeypatch.setattr(profile_job_module, "step_spells", lambda ranks: spells)
    runner = SimulatedRunner({})
    setup = Setup(runner=runner, options=TuneOptions(), say=lambda line: None)  # type: ignore[arg-type]
    progress = Progress(objective="step_s").with_trial(NOTHING, runner.trial(NOTHING, 20))
    progress, _ = profile_job_module.profile_job(setup, progress)
    (baseline,) = progress.evidence.baselines
    assert baseline.typical_firsts == ("evaluation",)


def test_a_profile_that_fails_within_the_budget_is_an_error() -> None:
    class Failing(SimulatedRunner):
        def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
            raise FlatoutError("the job could not be traced")

    with pytest.raises(FlatoutError, match="could not be traced"):
        tuned(Failing({WORKERS: 1.4}), budget_s=1e6)
