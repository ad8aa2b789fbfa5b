"""`profile`, `tune` and `compare`: commands of the user that are run and measured, unchanged."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flatout.api.arguments import (
    AnyPath,
    Progress,
    Say,
    check_choice,
    check_main_thread,
    check_range,
    optional_path,
    say_to_stderr,
    some_words_of,
    words_of,
)
from flatout.api.traces import diagnose
from flatout.errors import OutputError

if TYPE_CHECKING:
    from flatout.api.results import ComparisonResult, DiagnosisResult, ProfileResult, TuningResult
    from flatout.launch import ExitStatus
    from flatout.records.recording import Recording

Safety = Literal["exact", "rounding", "semantic"]

MAX_BUDGET_S = 30 * 86_400.0
LEAST_TRIALS = 4
LEAST_STEPS = 5
MAX_PROFILES = 20


class NotWrittenError(OutputError):
    """The results of a tuning could not be written; `result` has them."""

    def __init__(self, message: str, *, hint: str, result: TuningResult) -> None:
        super().__init__(message, hint=hint)
        self.result = result


class InterruptedComparison(KeyboardInterrupt):
    """A comparison was interrupted; `result` has what was measured before, and the same call resumes it."""

    def __init__(self, result: ComparisonResult, exit_code: int) -> None:
        super().__init__("the comparison was interrupted")
        self.result = result
        self.exit_code = exit_code


def profile(
    command: str | Sequence[str],
    *,
    out: AnyPath | None = None,
    steps: int = 3,
    warmup: int | None = None,
    light: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    say: Say = say_to_stderr,
) -> ProfileResult:
    """Run a training command, unchanged, record it, and diagnose the recording.

    `out` is the folder for the recording (default: `flatout-out/TIME`); an existing one is replaced only with `force`.
    `steps` are traced, after `warmup` steps or, by default, when step times are stable. `light` records step times,
    data loading, memory and the machine's state, but no trace. `progress` is called while traces are read, and `say`
    with lines about jobs that an earlier run left behind.

    Raises InputError if the command cannot be started. A job that fails raises nothing: see `ended` of the result.
    """
    from flatout.api.results import ProfileResult
    from flatout.inside.protocol import Variable
    from flatout.launch.abandoned import abandoned_jobs
    from flatout.profile import RecordOptions, record
    from flatout.profile.folder import default_path
    from flatout.run.several_nodes import key_of_nodes
    from flatout.secrets import masked_command

    check_main_thread("profile")
    check_range("steps", steps, least=1)
    check_range("warmup", warmup, least=0)
    words = some_words_of(command)
    for abandoned in abandoned_jobs():
        say(abandoned.describe())
    recorded = record(
        words,
        optional_path(out) or default_path(),
        RecordOptions(
            num_steps=steps,
            warmup=warmup,
            is_light=light,
            force=force,
            job_key=key_of_nodes(words, os.environ),
            variables={Variable.LOADER_STAGES: "1"},
        ),
        shown_command=masked_command(words),
        sampler=[sys.executable, "-m", "flatout.probe.sampler"],
    )
    if not recorded.is_first:
        return ProfileResult(path=recorded.path, ended=recorded.ended, is_first=False, recording=None, diagnosis=None)
    return _read_recording(recorded.path, recorded.ended, progress, light=light)


def _read_recording(path: Path, ended: ExitStatus, progress: Progress | None, *, light: bool) -> ProfileResult:
    """Read the recording and diagnose it. What fails here is kept, as the job has already run.

    A job that ended before it was traced still has a step log, whose findings need no trace.
    """
    from flatout.api.results import ProfileResult
    from flatout.diagnosis_pipeline import has_xla_profiles
    from flatout.profile import read_recording
    from flatout.recorded_job_pipeline import has_step_log, with_known_ceilings

    recording: Recording | None = None
    diagnosis: DiagnosisResult | None = None
    problem: Exception | None = None
    try:
        recording = with_known_ceilings(read_recording(path))
        is_complete = ended.signal is None
        has_steps_only = not light and has_step_log(recording)
        if (recording.traced_ranks or has_xla_profiles(path) or has_steps_only) and is_complete:
            if progress is not None:
                progress(0, len(recording.traced_ranks))
            diagnosis = diagnose(path, progress=progress)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the job's own exit code counts
        problem = error
    return ProfileResult(path=path, ended=ended, recording=recording, diagnosis=diagnosis, error=problem)


def tune(
    command: str | Sequence[str],
    *,
    out: AnyPath | None = None,
    budget_s: float = 1800.0,
    trials: int | None = None,
    allow: Safety = "exact",
    objective: str | None = None,
    latency: str | None = None,
    knobs: Sequence[str] = (),
    steps: int | None = None,
    warmup: int | None = None,
    sbatch_options: Sequence[str] | None = None,
    blocks: bool = False,
    history: bool = True,
    apply: bool = False,
    force: bool = False,
    typed: Sequence[str] = (),
    say: Say = say_to_stderr,
) -> TuningResult:
    """Find the changes that make a training command faster, without touching its code.

    The trials, the report and, if a change was accepted, `tuned.toml` for `flatout run --config` are written to `out`
    (default: `flatout-out/tune-TIME`); `force` replaces an earlier tuning there, and the same call without it resumes
    one. `budget_s` and `trials` limit the tuning. `allow` is the least strict class of changes to try, `objective` is
    samples/s, tokens/s, steps/s, memory or energy, and `knobs` are script arguments to vary, such as
    `batch={8,16}:--batch-size={}`. `latency` is a limit such as `p99<50ms` on the calls of a script that only infers: a
    change that breaks it is not used. With `sbatch_options`, each trial is a Slurm job. `blocks`
    first compares changes that can be switched in blocks of steps within one job. `history` corrects predictions by
    earlier tunings and adds this one to them. `apply` also writes files for other tools, `typed` is the command that
    the report names (default: `flatout tune -- COMMAND`), and `say` is called with each line of progress.

    Raises UsageError for an option that no job can have, InputError for a job that cannot be measured, and
    NotWrittenError, which has the result, if that cannot be written. Ctrl-C ends the tuning with what was found so far.
    """
    from flatout.api.results import TuningResult
    from flatout.records.change import SAFETIES
    from flatout.tune.call_limit import parse_call_limit
    from flatout.tune.command import TuneCommand, check_knobs
    from flatout.tune.options import TuneOptions, named_objective

    check_main_thread("tune")
    check_choice("allow", allow, SAFETIES)
    _check_trials(budget_s, trials, steps, warmup)
    words = some_words_of(command)
    limit = parse_call_limit(latency)
    check_knobs(knobs, words, allow, only_infers=limit is not None or None)
    options = TuneOptions(
        allowed_safety=allow,
        objective=named_objective(objective),
        latency=limit,
        budget_s=budget_s,
        max_trials=trials,
        num_steps=steps,
        knobs=tuple(knobs),
        uses_history=history,
        blocks=blocks,
        sbatch_options=None if sbatch_options is None else tuple(sbatch_options),
    )
    folder = optional_path(out) or new_folder("tune")
    tuning = TuneCommand(command=words, folder=folder, options=options, warmup=warmup, applies=apply, force=force)
    shown = tuple(typed) or ("flatout", "tune", "--", *words)
    result = TuningResult.of(tuning.tune(say), _folder=folder, _typed=shown)
    try:
        written = tuning.write(result, shown)
    except OutputError as error:
        hint = (
            "the result is shown and the trials are kept: free some space, then run the command again with this --out"
        )
        raise NotWrittenError(str(error), hint=hint, result=result) from error
    for line in written:
        say(line)
    return result


def compare(
    command: str | Sequence[str] = (),
    *,
    a: str | None = None,
    b: str | None = None,
    a_ref: str | None = None,
    b_ref: str | None = None,
    a_python: AnyPath | None = None,
    b_python: AnyPath | None = None,
    gate: float | None = None,
    budget_s: float = 1800.0,
    trials: int | None = None,
    steps: int | None = None,
    warmup: int | None = None,
    objective: str | None = None,
    profiles: int = 3,
    out: AnyPath | None = None,
    force: bool = False,
    typed: Sequence[str] = (),
    say: Say = say_to_stderr,
) -> ComparisonResult:
    """Compare two training commands in alternating trials: which is faster, by how much, and where.

    Both arms run `command`, or the commands `a` (the baseline) and `b`; `a_ref` and `b_ref` run them on commits of the
    repository, and `a_python` and `b_python` in Python environments. `gate` is the slowdown of B, as a share (0.03 is
    3 %), that fails the gate of the result. `objective` is the quantity to compare, as for `tune`, and `budget_s`
    limits the comparison. `profiles` are recorded of each arm, at most, to show where the difference is. Trials and the
    result are written to `out` (default: `flatout-out/compare-TIME`); `typed` is the command that the result names, and
    `say` is called with each line of progress.

    Raises UsageError or InputError for arms that cannot run, and InterruptedComparison, which has the result so far,
    on Ctrl-C.
    """
    from flatout.api.results import ComparisonResult
    from flatout.compare.command import CompareCommand
    from flatout.compare.options import CompareOptions
    from flatout.compare.request import compare_arms
    from flatout.tune.options import named_objective

    check_main_thread("compare")
    _check_trials(budget_s, trials, steps, warmup)
    check_range("gate", gate, least=0.0, most=10.0)
    check_range("profiles", profiles, least=0, most=MAX_PROFILES)
    pythons = (optional_path(a_python), optional_path(b_python))
    words = words_of(command)
    arms = compare_arms(words, commands=(a, b), refs=(a_ref, b_ref), pythons=pythons)
    folder = optional_path(out) or new_folder("compare")
    options = CompareOptions(
        budget_s=budget_s,
        max_trials=trials,
        num_steps=steps,
        gate=gate,
        objective=named_objective(objective),
        num_profiles=profiles,
    )
    comparison = CompareCommand(a=arms[0], b=arms[1], folder=folder, options=options, warmup=warmup, force=force)
    record, exit_code = comparison.run(say)
    given = {"--a": a, "--b": b, "--a-ref": a_ref, "--b-ref": b_ref, "--a-python": pythons[0], "--b-python": pythons[1]}
    shown = tuple(typed) or _typed_comparison(given, words)
    result = ComparisonResult.of(record, _folder=folder, _typed=shown)
    say(comparison.write(result, shown))
    if exit_code is not None:
        raise InterruptedComparison(result, exit_code)
    return result


def _check_trials(budget_s: float, trials: int | None, steps: int | None, warmup: int | None) -> None:
    check_range("budget_s", budget_s, least=1.0, most=MAX_BUDGET_S)
    check_range("trials", trials, least=LEAST_TRIALS)
    check_range("steps", steps, least=LEAST_STEPS)
    check_range("warmup", warmup, least=0)


def _typed_comparison(options: Mapping[str, object], words: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a comparison with these options."""
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return ("flatout", "compare", *given, *(["--", *words] if words else []))


def new_folder(verb: str) -> Path:
    """Return the folder for the results of a call without `out`."""
    return Path("flatout-out") / f"{verb}-{time.strftime('%Y%m%d-%H%M%S')}"
