"""Run trials and profiles of one command, each in fresh processes and its own folder, and journal them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec

from flatout.errors import FlatoutError, InputError, TracedTooLateError
from flatout.inside.protocol import Variable
from flatout.launch import ExitStatus, Launcher, LocalLauncher
from flatout.profile import RecordOptions
from flatout.profile.read_facts import read_facts
from flatout.records.change import ChangeSet, JobFacts
from flatout.records.recording import Recording
from flatout.records.stop_rule import StopRule, fixed_steps
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.tuning import Separation
from flatout.report.step_phrases import step_words
from flatout.trial.journal import Journal, Profile
from flatout.trial.outputs import EarlierRead, Outputs
from flatout.trial.profile_as_trial import profile_as_trial
from flatout.trial.result import TrialRun, error_line, trial_result
from flatout.trial.start import Start, other_start
from flatout.tune.profiled import CountedProfile, Profiled, read_profile, recording_in
from flatout.tune.recorded_runs import RecordedRuns
from flatout.tune.time_limits import TimeLimits
from flatout.tune.trial_files import TrialFiles, invalid_trial
from flatout.tune.trial_keys import blocks_key, trial_key
from flatout.tune.variation import Variation
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs

Say = Callable[[str], None]
EPOCH_PLACE = "epoch boundary"  # the purpose of trials that are long enough for one, and so are not usual


class BlocksRun(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One start of the job with changes that were switched in blocks of steps."""

    recording: Recording | None
    problem: str | None  # one line, if the job did not run to the end of its blocks
    took_s: float


class Runner:
    """Runs the trials and profiles of one tuning run, in order."""

    def __init__(
        self,
        command: Sequence[str],
        out: Path,
        journal: Journal,
        *,
        shown_command: Sequence[str],
        budget_s: float,
        say: Say,
        environment: Mapping[str, str] = os.environ,
        warmup: int | None = None,
        launcher: Launcher | None = None,
        separation: Separation | None = None,
        reports_trials: bool = True,
        mark: str | None = None,
    ) -> None:
        self.command = tuple(command)
        self.out = out
        self.journal = journal
        self.num_trials = 0
        self.num_resumed = 0
        self.files = TrialFiles(out, separation or Separation(), environment)
        self._starts: list[Start] = []  # of the unchanged job's trials
        self._complete: list[TrialResult] = []
        self._say = say
        self._reports_trials = reports_trials
        self.mark = mark or uuid.uuid4().hex  # identifies the processes of this tuning run
        self._warmup = warmup
        launcher = launcher or LocalLauncher()
        self._limits = TimeLimits(budget_s, launcher)
        self._runs = RecordedRuns(
            command,
            out,
            self.files,
            shown_command=shown_command,
            launcher=launcher,
            say=say,
            environment={**environment, Variable.TUNING: self.mark},
        )

    @property
    def outputs(self) -> Outputs:
        """Return what all trials since this process began have written."""
        return self.files.outputs

    @property
    def separation(self) -> Separation:
        """Return how the files of the trials are kept apart."""
        return self.files.separation

    @property
    def resumed_s(self) -> float:
        """Return the seconds of the trials and profiles that were taken from the journal."""
        return self._limits.resumed_s

    @property
    def usual_s(self) -> float | None:
        """Return the duration of a baseline trial; None before the first one has completed."""
        return self._limits.usual_s

    @usual_s.setter
    def usual_s(self, seconds: float) -> None:
        self._limits.usual_s = seconds

    def spent_s(self) -> float:
        """Return the seconds that the tuning took so far, without time in a queue.

        Time before an interruption counts, so that a resumed tuning ends as if it had not been interrupted.
        """
        return self._limits.spent_s()

    def trial(
        self,
        changes: ChangeSet,
        length: StopRule | int,
        place: str = "",
        *,
        other_samples: bool = False,
        other_rounding: bool = False,
    ) -> TrialResult:
        """Run one trial with these changes, or take it from the journal if that has an unused one for this place.

        `length` says when it has counted enough steps, or how many it counts. With `other_samples`, the job's loader
        draws other samples than in the other trials; with `other_rounding`, its weights are disturbed by a rounding.
        """
        variation = Variation(other_samples=other_samples, other_rounding=other_rounding)
        rule = fixed_steps(length) if isinstance(length, int) else length
        index = self.num_trials
        self.num_trials += 1
        key = trial_key(changes, rule) + variation.key
        recalled = self.journal.recall(key, place)
        if recalled is not None:
            self.num_resumed += 1
            self._limits.resumed_s += recalled.took_s or 0.0
            result = msgspec.structs.replace(recalled, index=index)
        else:
            result, reads = self._run_kept_apart(changes, rule, index, variation)
            self.journal.add(key, result, place)
            if reads:
                raise invalid_trial(f"trial {index}", reads)
        result = self._with_comparable_start(result, changes)
        if result.is_complete:
            took_s = result.took_s or (result.start_s or 0.0) + sum(result.step_s)
            is_usual = changes.name == BASELINE and not place.startswith(EPOCH_PLACE)
            if self.usual_s is None or is_usual:
                self._limits.follow(took_s, rule.min_steps)
            self._complete.append(result)
        if self._reports_trials:
            self._report(result, variation.words)
        return result

    def _with_comparable_start(self, result: TrialResult, changes: ChangeSet) -> TrialResult:
        """Return the trial as failed if it began in a different state from the first, and so did different work.

        The journal keeps the trial as it ran: which trial is the first is known only to the tuning that uses it.
        """
        if not result.is_complete or not result.start:
            return result
        problem = other_start(result.start, self._starts, changes)
        if problem is not None:
            return msgspec.structs.replace(result, outcome="failed", cause="other_start", problem=problem)
        if changes.name == BASELINE and not result.has_other_samples:
            self._starts.append(result.start)
        return result

    def profile(self, changes: ChangeSet, repeat: int = 0, counted: CountedProfile | None = None) -> Profiled:
        """Trace and diagnose the job with these changes.

        Raises FlatoutError if that fails: TracedTooLateError if the job had to be ended before it was traced.
        A profile from before an interruption is read again if its folder still exists. `repeat` numbers several
        profiles of the same job. A `counted` one measures as many steps as a trial counts at least before its trace, so
        that it can count as a trial (see `profile_as_trial`).
        """
        key = trial_key(changes, 0) + (f" repeat {repeat}" if repeat else "")
        variation = Variation(other_samples=counted is not None and counted.has_other_samples)
        key += variation.key
        former = self.journal.recall_profile(key)
        if former is not None and (self.out / "runs" / former.folder / "recording").is_dir():
            with suppress(FlatoutError):
                profiled = read_profile(self.out / "runs" / former.folder)
                self._limits.resumed_s += former.took_s
                return profiled if counted is None else self._as_trial(profiled, changes, former.session, counted)
        name, began = f"profile-{self.num_trials + repeat:03d}", self.spent_s()
        folder = self._runs.folder(name)
        variables = {Variable.STOP_AFTER: "1", Variable.LOADER_STAGES: "1", **variation.variables}
        if counted is not None:
            variables[Variable.STOP_RULE] = msgspec.json.encode(counted.rule).decode()
        limit_s = self._limits.of_profile_s()
        _, ended, _ = self._runs.record(changes, folder, RecordOptions(warmup=self._warmup), variables, limit_s)
        try:
            profiled = _read_ended_profile(folder, ended, limit_s)
        finally:
            reads = self.files.settle(folder)
        if reads:
            raise invalid_trial("the profile", reads)
        session = self.journal.session
        self.journal.add_profile(Profile(key=key, folder=name, took_s=self.spent_s() - began, session=session))
        return profiled if counted is None else self._as_trial(profiled, changes, session, counted)

    def _as_trial(
        self, profiled: Profiled, changes: ChangeSet, session: int | None, counted: CountedProfile
    ) -> Profiled:
        """Return the profile with its steps before the trace as the next trial, if they are as good as one.

        Trials of different sessions are not compared, so the session must be known.
        """
        if session is None or (profiled.is_slowed_by_stages and not counted.is_coarse):
            return profiled
        result = profile_as_trial(
            profiled.recording,
            profiled.facts,
            index=self.num_trials,
            arm=changes.name,
            session=session,
            is_coarse=counted.is_coarse,
            has_other_samples=counted.has_other_samples,
        )
        if result is None:
            return profiled
        self.num_trials += 1
        if changes.name == BASELINE and self.usual_s is not None and result.took_s is not None:
            self.usual_s = min(self.usual_s, result.took_s)  # the first start of a job is often its slowest
        self.num_resumed += session < self.journal.session
        self._complete.append(result)
        if self._reports_trials:
            self._report(result, "counted from the profile: ")
        return msgspec.structs.replace(profiled, trial=result)

    def blocks(self, applied: ChangeSet, schedule: str, limit_s: float) -> BlocksRun:
        """Run the job once with the applied changes, and switch others in blocks of steps as the schedule says.

        A run from before an interruption is read again if its folder still exists. Raises FlatoutError if the cluster
        keeps ending the job, or if it read files that an earlier trial has written.
        """
        key = blocks_key(applied, schedule)
        former = self.journal.recall_profile(key)
        if former is not None:
            recording = recording_in(self.out / "runs" / former.folder / "recording")
            if recording is not None and recording.ranks:
                self._limits.resumed_s += former.took_s
                return BlocksRun(recording=recording, problem=None, took_s=former.took_s)
        name = f"blocks-{self.num_trials:03d}"
        folder = self._runs.folder(name)
        variables = {Variable.BLOCKS: schedule, Variable.STOP_AFTER_S: str(int(limit_s))}
        options = RecordOptions(is_light=True, warmup=self._warmup)
        began_s = self.spent_s()
        ended_after_s = self._limits.ended_after_s(limit_s)
        recording, ended, output = self._runs.record(applied, folder, options, variables, ended_after_s)
        reads = self.files.settle(folder)
        if reads:
            raise invalid_trial("the job with blocks", reads)
        took_s = self.spent_s() - began_s
        problem = None if ended.code == 0 and not ended.is_timed_out else error_line(output)
        if problem is None:
            self.journal.add_profile(Profile(key=key, folder=name, took_s=took_s, session=self.journal.session))
        return BlocksRun(recording=recording, problem=problem, took_s=took_s)

    def _run_kept_apart(
        self, changes: ChangeSet, rule: StopRule, index: int, variation: Variation
    ) -> tuple[TrialResult, tuple[EarlierRead, ...]]:
        """Run a trial; if the first one fails in the overlay, run it again without one, as the overlay may be why."""
        began_s = self.spent_s()
        result, reads = self._run(changes, rule, index, began_s, variation)
        is_first = self.files.is_overlay and not self.files.works
        may_be_the_overlay = result.outcome == "failed" and result.cause in ("error", "no_step")
        if is_first and may_be_the_overlay:
            self.files.use_hooks(f"the job failed in one: {result.problem}")
            self._say(f"trial {index} failed with its files in an overlay; running it again without one")
            result, reads = self._run(changes, rule, index, began_s, variation)
        self.files.works |= result.is_complete
        return result, reads

    def _run(
        self, changes: ChangeSet, rule: StopRule, index: int, began_s: float, variation: Variation
    ) -> tuple[TrialResult, tuple[EarlierRead, ...]]:
        folder = self._runs.folder(f"trial-{index:03d}")
        limit_s = self._limits.of_trial_s(rule.min_steps, self._usual_end_s())
        variables = {
            Variable.STOP_RULE: msgspec.json.encode(rule).decode(),
            Variable.STOP_AFTER_S: str(int(limit_s)),
            Variable.GRADIENTS: "1",
            **variation.variables,
        }
        if "data" in changes.gates:
            variables[Variable.DATA_CHECK] = "1"
        options = RecordOptions(is_light=True, warmup=self._warmup)
        began_unix_s = time.time()
        ended_after_s = self._limits.ended_after_s(limit_s)
        recording, ended, output = self._runs.record(changes, folder, options, variables, ended_after_s)
        facts = _facts(folder / "recording", recording)
        reads = self.files.settle(folder)
        run = TrialRun(
            index=index,
            changes=changes,
            recording=recording,
            folder=folder / "recording",
            output=output,
            ended=ended,
            began_unix_s=began_unix_s,
            took_s=self.spent_s() - began_s,
            limit_s=limit_s,
            session=self.journal.session,
            loader_workers=facts.loader_workers,
            has_other_samples=variation.other_samples,
            has_other_rounding=variation.other_rounding,
            sets_own_seed=facts.sets_own_seed,
            steps_per_epoch=facts.steps_per_epoch,
            read_earlier=str(invalid_trial(f"trial {index}", reads)) if reads else None,
        )
        return trial_result(run), reads

    def _usual_end_s(self) -> float:
        """Return how long the trials took from their last step to their end; 0 if unknown."""
        costs = [trial.start_costs for trial in self._complete if trial.start_costs is not None]
        ends_s = [cost.end_s for cost in costs if cost.end_s is not None]
        return median(ends_s) if ends_s else 0.0

    def _report(self, result: TrialResult, how: str = "") -> None:
        at = f"{self._limits.elapsed_s():5.0f} s  trial {result.index:3d}"
        if result.is_complete:
            step = arm_step([trial_costs(self._complete, "step_s")[result.index]])
            what = step_words(step) if step is not None else ""
        elif result.cause == "not_applied":
            what = f"not applied: {result.problem}"
        else:
            what = result.problem
        self._say(f"{at}  {result.arm}: {how}{what}")


def _read_ended_profile(folder: Path, ended: ExitStatus, limit_s: float) -> Profiled:
    """Read the profile of a job that has ended. Raises TracedTooLateError if it was ended before it was complete."""
    try:
        return read_profile(folder, has_failed=ended.code not in (0, None))
    except FlatoutError as error:
        if not ended.is_timed_out:
            raise
        raise TracedTooLateError(
            f"the job could not be traced within {limit_s:.0f} s, and was ended", hint=error.hint
        ) from error


def _facts(folder: Path, recording: Recording | None) -> JobFacts:
    """Return the facts of the job, none if they cannot be read."""
    with suppress(InputError):
        return read_facts(folder, recording)
    return JobFacts()
