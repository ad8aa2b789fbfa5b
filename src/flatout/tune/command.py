"""Run `flatout tune` from its options to its result: open or resume the folder, tune, and write the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.change.arguments import check_apart, knob_changes, parse_knob
from flatout.launch.abandoned import abandoned_jobs
from flatout.launch.guard import guarded
from flatout.records.change import JobFacts, Safety
from flatout.records.tuning import TuneResult
from flatout.tune import loop
from flatout.tune.files import former_date, history_path, learn, learned, open_tuning, write_results
from flatout.tune.options import TuneOptions, tune_request
from flatout.tune.runner import Say
from flatout.tune.signals import EndedBySignal, Interrupts, signals_raised


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCommand:
    """A training command to tune, and the folder for its trials and results."""

    command: tuple[str, ...]
    folder: Path
    options: TuneOptions
    warmup: int | None = None
    applies: bool = False  # also writes files for other tools
    force: bool = False  # replaces an earlier tuning run in the folder

    def tune(self, say: Say) -> TuneResult:
        """Tune, resuming any tuning run in the folder.

        Ctrl-C ends it with what was found so far. EndedBySignal, and KeyboardInterrupt before the first trial has
        ended, end it without a result. The same command resumes it.
        """
        options = self.options
        for abandoned in abandoned_jobs():
            say(abandoned.describe())
        runner = open_tuning(self.command, self.folder, options, warmup=self.warmup, force=self.force, say=say)
        date = former_date(self.folder)  # the date of the tuning run that is resumed
        try:
            clean_up = (sys.executable, "-m", "flatout.tune.trial_files", str(self.folder.absolute()))
            interrupts = Interrupts()
            with signals_raised(), interrupts.handled(), guarded(runner.mark, clean_up):
                calibration = learned(history_path(), but=date) if options.uses_history else None
                result = loop.tune(runner, options, say, calibration, interrupts)
        except (KeyboardInterrupt, EndedBySignal):
            say(f"interrupted; run the same command with --out {self.folder} to resume")
            raise
        request = tune_request(options, self.warmup, applies=self.applies)
        result = msgspec.structs.replace(result, request=request)
        if result.end.ended_by == "interrupted":
            say(f"run the same command with --out {self.folder} to resume")
        if date is not None:
            result = msgspec.structs.replace(result, tuning=msgspec.structs.replace(result.tuning, date=date))
        return result

    def write(self, result: TuneResult, typed_command: Sequence[str]) -> list[str]:
        """Write the results, learn from them, and return the lines to print. Raises OutputError."""
        written = write_results(result, self.folder, apply=self.applies, command=typed_command)
        if self.options.uses_history:
            learn(result, history_path())
        return written


def check_knobs(
    knobs: Sequence[str], command: Sequence[str], allowed_safety: Safety, *, only_infers: bool | None = None
) -> None:
    """Raise UsageError before any trial if a knob cannot be used to tune any job."""
    parsed = [parse_knob(text) for text in knobs]
    check_apart(parsed)
    for knob in parsed:
        knob_changes(knob, command, JobFacts(has_batch_norm=False, only_infers=only_infers), allowed_safety)
