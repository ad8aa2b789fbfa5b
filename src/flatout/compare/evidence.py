"""Collect what the trials and profiles of a comparison show, by arm.

In: each trial and profile as it ends. Out: the trials in running order, the parts of their steps, and the calls in the
profiles. It judges nothing.
"""

from __future__ import annotations

from flatout.compare.calls import Calls, calls_of
from flatout.compare.judge import run_sd
from flatout.compare.parts import Parts, recorded_parts
from flatout.compare.runner import ArmRunner, arm_of
from flatout.errors import InputError
from flatout.profile import read_recording
from flatout.records.comparison import ArmName
from flatout.records.trial import TrialResult
from flatout.records.verdict import Objective
from flatout.report.scaling import parts_by_cause
from flatout.tune.profiled import Profiled


class ComparisonEvidence:
    """All trials and profiles of a comparison so far."""

    def __init__(self, *, objective: Objective | None) -> None:
        self.trials: list[TrialResult] = []
        self.recorded: dict[ArmName, list[Parts]] = {"A": [], "B": []}
        self.profiled: dict[ArmName, list[Parts]] = {"A": [], "B": []}
        self.calls: dict[ArmName, list[Calls]] = {"A": [], "B": []}
        self.profile_folders: dict[ArmName, str] = {}
        self.notes: list[str] = []
        self._asked_objective = objective

    @property
    def objective(self) -> Objective:
        """Return what is compared: by default time per sample, if all trials report their samples."""
        if self._asked_objective is not None:
            return self._asked_objective
        complete = [trial for trial in self.trials if trial.is_complete]
        return "s_per_sample" if all(trial.samples_per_step for trial in complete) else "step_s"

    @property
    def num_complete(self) -> int:
        return sum(trial.is_complete for trial in self.trials)

    @property
    def has_both(self) -> bool:
        """Whether each arm has a complete trial."""
        return all(any(trial.is_complete for trial in self.trials_of(arm)) for arm in ("A", "B"))

    @property
    def trial_s(self) -> float:
        """Return the mean duration of a trial; 0 before the first."""
        times = [trial.took_s for trial in self.trials if trial.took_s is not None]
        return sum(times) / len(times) if times else 0.0

    @property
    def run_sd(self) -> float | None:
        return run_sd(self.trials, self.objective)

    def trials_of(self, arm: ArmName) -> list[TrialResult]:
        return [trial for trial in self.trials if arm_of(trial.index) == arm]

    def add(self, result: TrialResult, runner: ArmRunner) -> None:
        self.trials.append(result)
        folder = runner.recording_of(result.index)
        if not result.is_complete or folder is None:
            return
        try:
            parts = recorded_parts(read_recording(folder))
        except InputError:
            return  # the trial of an earlier session, whose recording was removed
        if parts is not None:
            self.recorded[arm_of(result.index)].append(parts)

    def add_profile(self, arm: ArmName, profiled: Profiled) -> None:
        self.profile_folders[arm] = profiled.recording.path
        parts = parts_by_cause(profiled.done.diagnosis)
        if parts is not None:
            self.profiled[arm].append(parts)
        calls = calls_of(profiled.done)
        if calls is not None:
            self.calls[arm].append(calls)
