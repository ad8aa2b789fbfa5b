"""Run the trials and profiles of both arms in one order, each in fresh processes and its own folder.

In: an open `Runner` for each arm, which has the arm's command, environment, working folder and journal. Out:
`TrialResult`s in the order of the whole comparison. A is the baseline; B is the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.compare.judge import CANDIDATE
from flatout.records.change import ChangeSet
from flatout.records.comparison import ArmName
from flatout.records.stop_rule import StopRule
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.tuning import Separation
from flatout.trial.outputs import Outputs
from flatout.tune.profiled import Profiled
from flatout.tune.runner import Runner

_UNCHANGED = ChangeSet()
_ORDER: tuple[ArmName, ...] = ("A", "B", "B", "A")  # a drift then affects both arms alike


def arm_of(position: int) -> ArmName:
    """Return which arm has the trial, or the profile, at this position."""
    return _ORDER[position % len(_ORDER)]


class ArmRunner(Protocol):
    """Runs the trials of a comparison; tests have one that starts nothing."""

    num_trials: int

    def trial(self, length: StopRule | int) -> TrialResult: ...

    def profile(self, arm: ArmName) -> Profiled: ...

    def recording_of(self, index: int) -> Path | None: ...

    def output_of(self, index: int) -> Path | None: ...

    def spent_s(self) -> float: ...


class ArmRunners:
    """The runners of both arms, used in turn."""

    def __init__(self, runners: Mapping[ArmName, Runner]) -> None:
        self._runners = dict(runners)
        self._own_index: list[int] = []  # of each trial, among those of its arm
        self._num_profiles: dict[ArmName, int] = {"A": 0, "B": 0}
        self.num_trials = 0

    @property
    def num_resumed(self) -> int:
        return sum(runner.num_resumed for runner in self._runners.values())

    @property
    def outputs(self) -> Outputs:
        return self._runners["A"].outputs | self._runners["B"].outputs

    @property
    def separation(self) -> Separation:
        """Return how the files of the trials are kept apart: that of the arm that has no overlay, if one has none."""
        both = [runner.separation for runner in self._runners.values()]
        return next((one for one in both if one.method == "hooks"), both[0])

    def spent_s(self) -> float:
        """Return the seconds of this comparison so far, with those before an interruption."""
        runner_a, runner_b = self._runners["A"], self._runners["B"]
        return runner_a.spent_s() + runner_b.resumed_s

    def trial(self, length: StopRule | int) -> TrialResult:
        """Run the next trial, of the arm whose turn it is. Its index is its position in the comparison."""
        arm, index = arm_of(self.num_trials), self.num_trials
        runner = self._runners[arm]
        self._own_index.append(runner.num_trials)
        self.num_trials += 1
        result = runner.trial(_UNCHANGED, length)
        return msgspec.structs.replace(result, index=index, arm=BASELINE if arm == "A" else CANDIDATE)

    def profile(self, arm: ArmName) -> Profiled:
        """Trace and diagnose the arm's job. Raises FlatoutError if that fails."""
        repeat, self._num_profiles[arm] = self._num_profiles[arm], self._num_profiles[arm] + 1
        return self._runners[arm].profile(_UNCHANGED, repeat)

    def recording_of(self, index: int) -> Path:
        """Return the recording of the trial at this position."""
        return self._folder_of(index) / "recording"

    def output_of(self, index: int) -> Path:
        return self._folder_of(index) / "output.log"

    def _folder_of(self, index: int) -> Path:
        return self._runners[arm_of(index)].out / "runs" / f"trial-{self._own_index[index]:03d}"
