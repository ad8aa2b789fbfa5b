"""The folder of a tuning run: its journal, its lock, and the results written at its end."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.checkpoint.lock import NAME as LOCK
from flatout.errors import FlatoutError, OutputError, UsageError
from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import Variable
from flatout.launch import Launcher, LocalLauncher, SlurmLauncher, StandardInput
from flatout.launch.guard import end_marked
from flatout.launch.slurm import job_name
from flatout.nccl_tuner.in_tuning import FOLDER as MEASURED
from flatout.nccl_tuner.in_tuning import NcclRequest
from flatout.predict.calibrate import PredictionCalibration, calibrate
from flatout.predict.history import append_history, prediction_record, read_history
from flatout.records.prediction import PredictionRecord
from flatout.records.tuning import TIMES, Separation, TuneResult
from flatout.report.separation import separation_sentence
from flatout.secrets import masked_command, masked_text
from flatout.trial.bytecode import FOLDER as BYTECODE
from flatout.trial.command import TRIAL_DIR, keeps_outputs_apart
from flatout.trial.journal import Heading, Journal, is_journal
from flatout.trial.separation import TRIED, choose_separation
from flatout.tune.folder_lock import lock_folder
from flatout.tune.options import TuneOptions
from flatout.tune.result import is_better
from flatout.tune.runner import Runner, Say
from flatout.tune.trial_files import WRITTEN, settle_interrupted

JOURNAL = "journal.jsonl"
HERE_TARGETS = ("torchrun", "slurm")  # tools that run where the tuning ran, and find tuned.toml in its folder
SHOWN_TARGETS = ("environment", "torchrun")  # shown as a diff if they are not written
RESULTS = ("tuned.toml", "tuning.json", "report.html")
_BUDGETS = ("budget_s", "max_trials")  # options that may differ when a tuning run is resumed


class _Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are read back from `tuning.json`."""

    is_cut_short: bool = False
    ended_by: str = ""
    why_ended: str = ""
    budget_s: float | None = None
    max_trials: int | None = None
    date: str = ""


def open_tuning(
    command: Sequence[str],
    folder: Path,
    options: TuneOptions,
    *,
    warmup: int | None,
    force: bool,
    say: Say,
) -> Runner:
    """Return the runner of a new tuning run in `folder`, or of a run there that was interrupted or ended by its budget.

    A run of another command there is replaced if none of its trials succeeded. Raises OutputError, InputError, and
    UsageError if a run that was ended by its budget is to be resumed without a larger budget. The folder is locked
    until this process ends; processes that an earlier run left behind are ended.
    """
    folder = folder.absolute()
    standard_input = StandardInput()
    launcher: Launcher = LocalLauncher(standard_input)
    no_input = standard_input.missing
    if options.sbatch_options is not None:
        no_input = "each is a batch job of Slurm"
        launcher = SlurmLauncher(options.sbatch_options, name=job_name(folder), say=say)
    try:
        has_results = _claim(folder, options, force=force)
        shown = masked_command(command)
        shown_options = {
            name: _shown_option(value)
            for name, value in msgspec.structs.asdict(options).items()
            if name not in _BUDGETS and value != NcclRequest()  # journals of earlier versions have no such option
        }
        journal = Journal(
            folder / JOURNAL,
            Heading(tool_version=__version__, command=tuple(shown), options={**shown_options, "warmup": repr(warmup)}),
            may_replace=not has_results,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"{folder} cannot be written to: {reason}", hint="pass another --out") from error
    runs = f"{folder / 'runs'}{os.sep}"
    if num_left := end_marked(lambda environment: environment.get(Variable.RECORDING, "").startswith(runs)):
        say(f"ended {num_left} process{'es' * (num_left > 1)} left by an earlier tuning run")
    if journal.num_replaced:
        say(f"{folder} held another tuning, none of whose trials succeeded: it is replaced")
    within = [line for line in journal.damaged if line.number < journal.num_lines]
    if within:
        say(f"{len(within)} damaged lines of the journal are skipped ({within[0]})")
    if journal.num_before:
        say(f"resuming with the {journal.num_before} trials in {folder / JOURNAL}")
    if no_input is not None:
        say(f"trials have no standard input: {no_input}")
    settle_interrupted(folder)
    separation = _separation(command, folder, options)
    say(separation_sentence(separation))
    if not keeps_outputs_apart(command):
        say("with {trial_dir} in the command, the script can write into the trial's own folder")
    return Runner(
        command,
        folder,
        journal,
        shown_command=shown,
        budget_s=options.budget_s,
        say=say,
        warmup=warmup,
        launcher=launcher,
        separation=separation,
    )


def _claim(folder: Path, options: TuneOptions, *, force: bool) -> bool:
    """Create or lock the folder, and with `force` remove the tuning run there; return whether it has results.

    Raises OutputError, or UsageError, if the folder holds anything else or its tuning run cannot be resumed.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="pass another --out")
    is_ours = folder.exists() and is_journal(folder / JOURNAL)
    if folder.exists() and not is_ours and any(entry.name != LOCK for entry in folder.iterdir()):
        raise OutputError(f"{folder} already has other files", hint="pass another --out")
    if is_ours:
        lock_folder(folder, "tuning")
    if is_ours and force:
        _check_only_ours(folder)
        for name in ("runs", MEASURED, JOURNAL, *RESULTS):
            _remove(folder / name)
    has_results = any((folder / name).exists() for name in RESULTS)
    if has_results:
        _check_resumes(folder, options)
    folder.mkdir(parents=True, exist_ok=True)
    if not is_ours:
        lock_folder(folder, "tuning")
    return has_results


def _separation(command: Sequence[str], folder: Path, options: TuneOptions) -> Separation:
    if options.sbatch_options is not None:
        working_folder = os.path.realpath(os.getcwd())
        return Separation(folders=(working_folder,), reason="each trial is a batch job of Slurm")
    return choose_separation(command, folder)


def _check_only_ours(folder: Path) -> None:
    """Raise OutputError if the folder of a tuning run has other files, which `--force` would be trusted to keep."""
    others = sorted(entry.name for entry in folder.iterdir() if not is_of_tuning(entry))
    if others:
        raise OutputError(
            f"`{folder}` holds more than a tuning run, such as `{others[0]}`, and is not replaced",
            hint="pass another --out",
        )


def is_of_tuning(entry: Path) -> bool:
    """Whether an entry of a folder is one that a tuning makes there."""
    if entry.is_symlink():
        return False
    if entry.is_dir():
        names = [inner.name for inner in entry.iterdir()] if entry.name == "runs" else []
        is_left = entry.name in ("files", MEASURED) or entry.name.startswith(TRIED)
        return is_left or (entry.name == "runs" and all(map(_is_of_runs, names)))
    return entry.name in (JOURNAL, LOCK, *RESULTS)


def _is_of_runs(name: str) -> bool:
    return name in (WRITTEN, BYTECODE) or re.fullmatch(r"(trial|profile)-\d+", name) is not None


def _check_resumes(folder: Path, options: TuneOptions) -> None:
    """Raise an error unless the tuning run there was interrupted, or ended by its budget and now has a larger one."""
    former = _finished(folder)
    if former is None or not former.is_cut_short or former.budget_s is None:
        raise OutputError(f"{folder} already has a finished tuning", hint="pass another --out, or add --force")
    trials = (former.max_trials or math.inf, options.max_trials or math.inf)
    is_smaller = options.budget_s < former.budget_s or trials[1] < trials[0]
    is_equal = options.budget_s == former.budget_s and trials[1] == trials[0]
    if is_smaller or (is_equal and former.ended_by != "interrupted"):
        words = [f"--budget {options.budget_s:.0f}s"]
        words += [f"--trials {options.max_trials}"] if options.max_trials is not None else []
        raise UsageError(
            f"the tuning in {folder} ended because {former.why_ended}: to resume it, increase `--budget` or"
            f" `--trials`, and decrease neither; got {' '.join(words)}",
            hint="pass another --out to tune from scratch, or add --force",
        )


def _finished(folder: Path) -> _Finished | None:
    """Read `tuning.json`; None if there is none or it cannot be read."""
    try:
        return decode_json(read_bytes(folder / "tuning.json"), type=_Finished)
    except (OSError, msgspec.DecodeError):
        return None


def former_date(folder: Path) -> str | None:
    """Return the date of the finished tuning run in `folder`, under which its outcomes are already in the history."""
    former = _finished(folder)
    return former.date or None if former is not None else None


def history_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file with this user's predictions and measurements, which make later predictions better."""
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "flatout" / "predictions.jsonl"


def learned(path: Path, *, but: str | None = None) -> PredictionCalibration | None:
    """Return the calibration from earlier tuning runs; None if there is none or the file cannot be read.

    `but` is the date of a tuning run that is being resumed: excluding its own outcomes, it starts from the same
    predictions as before, and so from the same trials.
    """
    try:
        outcomes = read_history(path).records
    except (OSError, FlatoutError):
        return None
    # A resumed tuning has recorded some outcomes twice: the last record counts.
    last = {(record.date, record.machine, record.change): record for record in outcomes if record.date != but}
    return calibrate(last.values()) if last else None


def learn(result: TuneResult, path: Path) -> None:
    """Add this run's measurements for its predictions to the history.

    If the history cannot be written, it is not an error.
    """
    outcomes = outcomes_of(result)
    if outcomes:
        with suppress(OSError, FlatoutError):
            path.parent.mkdir(parents=True, exist_ok=True)
            append_history(path, outcomes)


def outcomes_of(result: TuneResult) -> list[PredictionRecord]:
    """Return each predicted change's measured speedup with its noise: from its pairs if it has any, else its trial.

    Changes that lost the screening are included: without them only changes that looked good would be learned from,
    and never an estimate that was too high. For the same reason it is the plain mean of the pairs, whatever their
    verdict: `speedup` is corrected for selection, and nothing is selected here. Unsafe changes are excluded.
    """
    if result.objective not in TIMES:  # predictions are of time
        return []
    machine, date = result.tuning.machine.get("device", ""), result.tuning.date
    pair_sd = result.floor.pair_sd(result.num_steps) if result.floor is not None else 0.0
    in_pairs = [
        prediction_record(
            tried.prediction,
            tried.verdict.mean_speedup,
            machine,
            date,
            sd=pair_sd / math.sqrt(max(tried.verdict.num_pairs, 1)),
        )
        for tried in result.tried
        if tried.prediction is not None
        and tried.verdict is not None
        and tried.verdict.mean_speedup is not None
        and tried.outcome != "unsafe"
    ]
    alone = [
        prediction_record(screened.prediction, screened.speedup, machine, date, sd=screened.sd)
        for screened in result.screened_alone
    ]
    return [*in_pairs, *alone]


def write_results(result: TuneResult, folder: Path, *, apply: bool, command: Sequence[str]) -> list[str]:
    """Write report.html, tuned.toml (if the verdict is better) and tuning.json; return the lines to print.

    Raises OutputError if the disk is full. Each file is complete or absent. tuning.json, which marks the tuning as
    finished, is the last of the three: without it the same command writes them again from the journal.
    """
    from flatout.emit import tuned_toml
    from flatout.emit.masked import masked_tuning
    from flatout.emit.write import write
    from flatout.report.files import write_new
    from flatout.report.tuning_html import tuning_html
    from flatout.report.tuning_json import tuning_json

    write_new(folder / "report.html", tuning_html(result, command, folder), force=True)
    lines = [f"wrote {folder / 'report.html'}"]
    if is_better(result):
        lines.append(f"wrote {write(tuned_toml.emit(masked_tuning(result.tuning)), folder, force=True)}")
    else:
        _remove(folder / "tuned.toml")  # written by this tuning before it was resumed
    write_new(folder / "tuning.json", tuning_json(result, command), force=True)
    return [*lines, *_others(result, folder / "files", apply=apply)] if is_better(result) else lines


def _others(result: TuneResult, folder: Path, *, apply: bool) -> list[str]:
    """Write the files for other tools, or show them; a file that the user may have edited is not overwritten."""
    from flatout.emit.masked import masked_note, masked_tuning
    from flatout.emit.targets import TARGETS
    from flatout.emit.write import diff, write

    lines: list[str] = []
    notes: list[str] = []
    others = []
    # The real job has no trial folder: it writes where it is started, as with `flatout run`.
    shown = masked_tuning(result.tuning)
    tuning = msgspec.structs.replace(shown, command=tuple(word.replace(TRIAL_DIR, ".") for word in shown.command))
    here = msgspec.structs.replace(tuning, config=_from_here(folder.parent / "tuned.toml"))
    for name, emit in TARGETS.items():
        emitted = emit(here if name in HERE_TARGETS else tuning)
        if name == "tuned-toml":
            continue
        if apply or name in SHOWN_TARGETS:
            notes += [f"{emitted.path}: {note}" for note in emitted.notes]
        if apply:
            path = folder / emitted.path
            if path.exists() and (different := diff(emitted, folder)):
                lines += [f"{path} exists and is not overwritten; it would become:", *different.splitlines()]
            else:
                lines.append(f"wrote {write(emitted, folder)}")
        elif name in SHOWN_TARGETS:
            lines += diff(emitted, folder).splitlines()
        else:
            others.append(emitted.path)
    if others:
        lines.append(f"not written without --apply: the two above, and {', '.join(others)}")
    lines += notes
    return [*lines, *masked_note(result.tuning)]


def _from_here(path: Path) -> str:
    """Return the path relative to the working folder if it is inside.

    The folder may have a different path on another node.
    """
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _shown_option(value: object) -> str:
    """Return an option's value for the journal, with its secrets masked."""
    words = (
        masked_command(value) if isinstance(value, tuple) and all(isinstance(word, str) for word in value) else value
    )
    return masked_text(repr(words))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
