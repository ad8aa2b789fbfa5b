"""Runs trials and profiles of one command, each in fresh processes and a folder of its own, and journals them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.change.collectives import with_collectives
from flatout.change.transport import with_transport
from flatout.errors import FlatoutError, InputError
from flatout.launch import Ended, Launcher, LocalLauncher
from flatout.loop import Diagnosed, diagnose_paths
from flatout.profile import Options, read_recording, record
from flatout.profile.read_facts import read_facts
from flatout.records.change import ChangeSet, JobFacts
from flatout.records.recording import Recording
from flatout.records.trial import BASELINE, TrialResult
from flatout.trial.command import trial_command
from flatout.trial.data import check_data
from flatout.trial.journal import Journal
from flatout.trial.outputs import Outputs, settle_outputs
from flatout.trial.patches import unapplied
from flatout.trial.result import error_line, trial_result

Say = Callable[[str], None]
_STOP_GRACE_S = 60.0  # beyond the limit that the job itself knows of, before it is ended from outside
MAX_TRIAL_S = 1800.0
MAX_VOID = 3  # runs in a row that the cluster ended


class Profiled(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    done: Diagnosed
    recording: Recording
    facts: JobFacts


def trial_key(changes: ChangeSet, num_steps: int) -> str:
    """The same for trials that run the same: what is predicted of a change plays no part."""
    done = msgspec.structs.replace(changes, changes=())
    return f"{changes.name} {json.dumps(msgspec.to_builtins(done), sort_keys=True)} {num_steps}"


class Runner:
    """All runs of one tuning, in order. `limit_s` gives the seconds that are left for it."""

    def __init__(
        self,
        command: Sequence[str],
        out: Path,
        journal: Journal,
        *,
        shown_command: Sequence[str],
        left_s: Callable[[], float],
        say: Say,
        environment: Mapping[str, str] = os.environ,
        warmup: int | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self.command = tuple(command)
        self.out = out
        self.journal = journal
        self.num_trials = 0
        self.num_resumed = 0
        self.usual_s: float | None = None  # what a trial of the baseline takes
        self.outputs = Outputs()  # of all trials since the start, or since they were resumed
        self._shown_command = tuple(shown_command)
        self._left_s = left_s
        self._say = say
        self._environment = dict(environment)
        self._warmup = warmup
        self._launcher = launcher or LocalLauncher()
        self._began = time.monotonic()

    @property
    def waited_s(self) -> float:
        """Seconds in a queue, which are no part of the budget."""
        return self._launcher.waited_s

    def trial(self, changes: ChangeSet, num_steps: int) -> TrialResult:
        """One trial with these changes; from the journal where it has one that was not used yet."""
        index = self.num_trials
        self.num_trials += 1
        key = trial_key(changes, num_steps)
        result = self.journal.recall(key)
        if result is not None:
            self.num_resumed += 1
            result = msgspec.structs.replace(result, index=index)
        else:
            result = self._run(changes, num_steps, index)
            self.journal.add(key, result)
        if result.is_complete:
            took_s = (result.start_s or 0.0) + sum(result.step_s)
            self.usual_s = took_s if self.usual_s is None or changes.name == BASELINE else self.usual_s
        self._tell(result)
        return result

    def profile(self, changes: ChangeSet) -> Profiled:
        """The job with these changes, traced and diagnosed. Raises FlatoutError where that does not succeed."""
        folder = self._folder(f"profile-{self.num_trials:03d}")
        recording, _, output = self._record(changes, folder, Options(warmup=self._warmup), {"FLATOUT_STOP_AFTER": "1"})
        if recording is None or not any(rank.traced_steps for rank in recording.ranks):
            why = recording.problems[0].problem if recording is not None and recording.problems else error_line(output)
            raise FlatoutError(f"the job could not be traced: {why}", hint=f"its output is in {output}")
        try:
            done = diagnose_paths([folder / "recording"], with_tracks=True)
        except InputError as error:
            why = "; ".join(dict.fromkeys(note.problem for note in recording.problems)) or str(error)
            raise FlatoutError(f"the job could not be traced: {why}", hint=f"its output is in {output}") from error
        known = read_facts(folder / "recording", recording)
        facts = with_transport(with_collectives(known, done.job), recording.hosts)
        self._clear(folder)
        return Profiled(done=done, recording=recording, facts=facts)

    def _run(self, changes: ChangeSet, num_steps: int, index: int) -> TrialResult:
        folder = self._folder(f"trial-{index:03d}")
        limit_s = self._limit_s()
        variables = {"FLATOUT_STOP_AFTER": str(num_steps), "FLATOUT_STOP_AFTER_S": str(int(limit_s))}
        if "data" in changes.gates:
            variables["FLATOUT_DATA_CHECK"] = "1"
        options = Options(is_light=True, warmup=self._warmup)
        began = time.time()
        recording, ended, output = self._record(changes, folder, options, variables, limit_s + _STOP_GRACE_S)
        result = trial_result(
            recording,
            index=index,
            arm=changes.name,
            exit_code=ended.code,
            is_timed_out=ended.is_timed_out,
            limit_s=limit_s,
            start_unix_s=ended.start_unix_s or began,
            output=output,
        )
        if ended.cause is not None and ended.cause != "void":
            result = msgspec.structs.replace(result, outcome=ended.cause, problem=ended.reason)
        if ended.nodes is not None:
            covariates = msgspec.structs.replace(result.covariates, nodes=ended.nodes, job=ended.job)
            result = msgspec.structs.replace(result, covariates=covariates)
        data = check_data(folder / "recording", len(recording.ranks) if recording is not None else 0)
        if not data.is_passed:
            result = msgspec.structs.replace(result, wrong_data=data.reason)
        missing = unapplied(folder / "recording", changes)
        if result.is_complete and missing:
            result = msgspec.structs.replace(result, outcome="failed", problem=f"not applied: {missing[0]}")
        self._clear(folder)
        return result

    def _record(
        self,
        changes: ChangeSet,
        folder: Path,
        options: Options,
        variables: Mapping[str, str],
        limit_s: float | None = None,
    ) -> tuple[Recording | None, Ended, Path]:
        """Run it; again where it was not the job that ended the run."""
        num_void = 0
        while True:
            recorded = self._record_once(changes, folder, options, variables, limit_s or self._limit_s())
            ended = recorded[1]
            if ended.cause != "void":
                return recorded
            num_void += 1
            if num_void == MAX_VOID:
                break
            self._say(f"{folder.name} is run again: job {ended.job}: {ended.reason}")
            self._folder(folder.name)
        raise FlatoutError(
            f"{MAX_VOID} times in a row the cluster ended {folder.name}, the last time as {ended.reason}",
            hint="the same command with its --out goes on where it stopped",
        )

    def _record_once(
        self, changes: ChangeSet, folder: Path, options: Options, variables: Mapping[str, str], limit_s: float
    ) -> tuple[Recording | None, Ended, Path]:
        output = folder / "output.log"
        (folder / "files").mkdir()
        made = trial_command(self.command, changes, folder / "files")
        options = msgspec.structs.replace(
            options,
            force=True,
            variables={**made.variables, "FLATOUT_DIVERT": str(folder / "saved"), "FLATOUT_FACTS": "1", **variables},
        )
        recorded = record(
            made.words,
            folder / "recording",
            options,
            shown_command=self._shown_command,
            sampler=[sys.executable, "-m", "flatout.probe.sampler"],
            environment=self._environment,
            run_command=lambda words, job: self._launcher.run(words, job, output=output, limit_s=limit_s),
        )
        try:
            recording = read_recording(folder / "recording")
        except InputError:
            recording = None
        return recording, recorded.ended, output

    def _limit_s(self) -> float:
        """A trial that takes five times as long as the baseline is no improvement."""
        usual = MAX_TRIAL_S if self.usual_s is None else max(5 * self.usual_s, 60.0)
        return max(min(usual, self._left_s() + self.waited_s, MAX_TRIAL_S), 30.0)

    def _folder(self, name: str) -> Path:
        folder = self.out / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted tuning that is resumed here
        folder.mkdir(parents=True)
        return folder

    def _clear(self, folder: Path) -> None:
        """What the script saved is of a few steps, and worth nothing."""
        self.outputs |= settle_outputs(folder / "recording", folder / "saved")
        for name in ("saved", "files"):
            shutil.rmtree(folder / name, ignore_errors=True)

    def _tell(self, result: TrialResult) -> None:
        from flatout.units import seconds

        at = f"{time.monotonic() - self._began:5.0f} s  trial {result.index:3d}"
        what = f"{seconds(sum(result.step_s) / len(result.step_s))} a step" if result.is_complete else result.problem
        self._say(f"{at}  {result.arm}: {what}")
