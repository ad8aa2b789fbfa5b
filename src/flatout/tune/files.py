"""The folder of a tuning: its journal and lock, and what is written at its end."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import FlatoutError, OutputError, UsageError
from flatout.inside.protocol import Variable
from flatout.launch import Launcher, LocalLauncher, SlurmLauncher
from flatout.launch.guard import end_marked
from flatout.launch.slurm import job_name
from flatout.predict.calibrate import Calibration, calibrate
from flatout.predict.history import append_history, outcome, read_history
from flatout.records.prediction import Outcome
from flatout.records.tuning import TIMES, TuneResult, Tuning
from flatout.report.command import masked_command
from flatout.secrets import MASK
from flatout.trial.command import TRIAL_DIR, keeps_outputs_apart
from flatout.trial.journal import Heading, Journal
from flatout.tune.options import TuneOptions
from flatout.tune.result import is_better
from flatout.tune.runner import Runner, Say

JOURNAL = "journal.jsonl"
HERE_TARGETS = ("torchrun", "slurm")  # are started where the tuning was, and find tuned.toml in its folder
SHOWN_TARGETS = ("environment", "torchrun")  # as a diff, where nothing is written
RESULTS = ("tuned.toml", "tuning.json", "report.html")
_SPENT = ("budget_s", "max_trials")  # options with which a tuning may go on, though they are others


class _Finished(msgspec.Struct, frozen=True, kw_only=True):
    """Of `tuning.json`."""

    is_cut_short: bool = False
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
    """The runner of a new tuning in `folder`, or of one that was interrupted there, or that its budget ended.

    A tuning of another command there, no trial of which succeeded, gives way; one with trials does not.
    Raises OutputError, InputError, and UsageError where it is to go on with no more than what ended it.
    The folder is locked until this process ends; processes that a former tuning left there are ended.
    """
    folder = folder.absolute()
    launcher: Launcher = LocalLauncher()
    if options.sbatch_options is not None:
        launcher = SlurmLauncher(options.sbatch_options, name=job_name(folder), say=say)
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is no folder", hint="choose another --out")
        is_ours = (folder / JOURNAL).exists()
        if folder.exists() and any(folder.iterdir()) and not is_ours:
            raise OutputError(f"{folder} has other files already", hint="choose another --out")
        if is_ours:
            _lock(folder)
        if is_ours and force:
            for name in ("runs", JOURNAL, *RESULTS):
                _remove(folder / name)
        has_results = any((folder / name).exists() for name in RESULTS)
        if has_results:
            _check_goes_on(folder, options)
        folder.mkdir(parents=True, exist_ok=True)
        if not is_ours:
            _lock(folder)
        shown = masked_command(command)
        asked = {name: repr(value) for name, value in msgspec.structs.asdict(options).items() if name not in _SPENT}
        journal = Journal(
            folder / JOURNAL,
            Heading(tool_version=__version__, command=tuple(shown), options={**asked, "warmup": repr(warmup)}),
            may_replace=not has_results,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"{folder} cannot be written to: {reason}", hint="choose another --out") from error
    runs = f"{folder / 'runs'}{os.sep}"
    if num_left := end_marked(lambda environment: environment.get(Variable.RECORDING, "").startswith(runs)):
        say(f"ended {num_left} process{'es' * (num_left > 1)} that a former tuning left")
    if journal.num_replaced:
        say(f"{folder} held another tuning, no trial of which succeeded: this one takes its place")
    if journal.num_before:
        say(f"going on with the {journal.num_before} trials in {folder / JOURNAL}")
    if not keeps_outputs_apart(command):
        say(
            "your files stay as they are: what a trial's Python code would overwrite, rename or remove is kept apart,"
            " and so are checkpoints (torch.save, torch.distributed.checkpoint, safetensors). New files are written"
            " where the script wants them, and what other programs and compiled libraries write is not seen: with"
            " {trial_dir} in the command, the script can write into a folder of the trial's own"
        )
    return Runner(
        command,
        folder,
        journal,
        shown_command=shown,
        budget_s=options.budget_s,
        say=say,
        warmup=warmup,
        launcher=launcher,
    )


def _check_goes_on(folder: Path, options: TuneOptions) -> None:
    """A finished tuning goes on if its budget ended it, and it has a larger one now."""
    former = _finished(folder)
    if former is None or not former.is_cut_short or former.budget_s is None:
        raise OutputError(f"{folder} has a finished tuning already", hint="choose another --out, or add --force")
    trials = (former.max_trials or math.inf, options.max_trials or math.inf)
    is_smaller = options.budget_s < former.budget_s or trials[1] < trials[0]
    if is_smaller or (options.budget_s == former.budget_s and trials[1] == trials[0]):
        words = [f"--budget {options.budget_s:.0f}s"]
        words += [f"--trials {options.max_trials}"] if options.max_trials is not None else []
        raise UsageError(
            f"the tuning in {folder} ended because {former.why_ended}: to go on, `--budget` or `--trials` must be"
            f" larger than then, and neither smaller, but got {' '.join(words)}",
            hint="choose another --out to tune anew, or add --force",
        )


def _finished(folder: Path) -> _Finished | None:
    """None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((folder / "tuning.json").read_bytes(), type=_Finished)
    except (OSError, msgspec.DecodeError):
        return None


def former_date(folder: Path) -> str | None:
    """Of the finished tuning in `folder` that goes on: under this date its outcomes are in the history already."""
    former = _finished(folder)
    return former.date or None if former is not None else None


def _lock(folder: Path) -> None:
    """OutputError where another process has it. Where the file system knows no locks, there are none."""
    descriptor = os.open(folder, os.O_RDONLY)  # open until the process ends
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise OutputError(
            f"another tuning is at work in {folder}", hint="wait for it, or choose another --out"
        ) from error
    except OSError:
        os.close(descriptor)


def history_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's predictions lie beside what was measured: from use they become better."""
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "flatout" / "predictions.jsonl"


def learned(path: Path, *, but: str | None = None) -> Calibration | None:
    """What former tunings say of the predictions; None where there is nothing, or it cannot be read.

    `but`: the date of a tuning that goes on. It starts from the same predictions as then, and so from the same trials.
    """
    try:
        outcomes = read_history(path).outcomes
    except (OSError, FlatoutError):
        return None
    # A tuning that went on has told some things twice: what it said last counts.
    last = {(one.date, one.machine, one.change): one for one in outcomes if one.date != but}
    return calibrate(last.values()) if last else None


def learn(result: TuneResult, path: Path) -> None:
    """Add what this tuning measured of its predictions. A history that cannot be written is no error of the tuning."""
    outcomes = outcomes_of(result)
    if outcomes:
        with suppress(OSError, FlatoutError):
            path.parent.mkdir(parents=True, exist_ok=True)
            append_history(path, outcomes)


def outcomes_of(result: TuneResult) -> list[Outcome]:
    """Pairs that count where there are some, else the trial of its own, each with its noise.

    Losers of the screening count too: without them only changes that looked good would be learned from, and a
    prediction that promised too much never. So it is the plain mean of pairs, too, whatever their verdict: `speedup`
    takes out what choosing the lucky ones adds, and here nothing is chosen by its result. Of an unsafe change nothing
    is learned.
    """
    if result.objective not in TIMES:  # what is predicted is time
        return []
    machine, date = result.tuning.machine.get("device", ""), result.tuning.date
    pair_sd = result.floor.pair_sd(result.num_steps) if result.floor is not None else 0.0
    in_pairs = [
        outcome(
            one.prediction,
            one.verdict.mean_speedup,
            machine,
            date,
            sd=pair_sd / math.sqrt(max(one.verdict.num_pairs, 1)),
        )
        for one in result.tried
        if one.prediction is not None
        and one.verdict is not None
        and one.verdict.mean_speedup is not None
        and one.outcome != "unsafe"
    ]
    alone = [outcome(one.prediction, one.speedup, machine, date, sd=one.sd) for one in result.screened_alone]
    return [*in_pairs, *alone]


def write_results(result: TuneResult, folder: Path, *, apply: bool, command: Sequence[str]) -> list[str]:
    """Write tuned.toml (if something won), report.html and tuning.json; what to print of them and of other files.

    OutputError where there is no room for them. Each is written whole or not at all, and tuning.json, which says that
    the tuning is finished, last of these: without it the same command makes them again from the journal.
    """
    from flatout.emit import tuned_toml
    from flatout.emit.write import write
    from flatout.report.files import write_new
    from flatout.report.tuning_html import tuning_html
    from flatout.report.tuning_json import tuning_json

    write_new(folder / "report.html", tuning_html(result, command, folder), force=True)
    lines = [f"wrote {folder / 'report.html'}"]
    if is_better(result):
        lines.append(f"wrote {write(tuned_toml.emit(_masked(result.tuning)), folder, force=True)}")
    else:
        _remove(folder / "tuned.toml")  # of the tuning that went on here
    write_new(folder / "tuning.json", tuning_json(result, command), force=True)
    return [*lines, *_others(result, folder / "files", apply=apply)] if is_better(result) else lines


def _others(result: TuneResult, folder: Path, *, apply: bool) -> list[str]:
    """The files of other tools: written, or what would be. What somebody may have filled in since is left as it is."""
    from flatout.emit.targets import TARGETS
    from flatout.emit.write import diff, write

    lines: list[str] = []
    notes: list[str] = []
    others = []
    # A job that is started for good has no trial's folder: it writes where it is started, as with `flatout run`.
    shown = _masked(result.tuning)
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
                lines += [f"{path} is there, and is left as it is; it would become:", *different.splitlines()]
            else:
                lines.append(f"wrote {write(emitted, folder)}")
        elif name in SHOWN_TARGETS:
            lines += diff(emitted, folder).splitlines()
        else:
            others.append(emitted.path)
    if others:
        lines.append(f"not written without --apply: the two above, and {', '.join(others)}")
    lines += notes
    if shown.command != result.tuning.command:
        lines.append(f"values that look like secrets are {MASK} in the commands of these files: fill them in")
    return lines


def _from_here(path: Path) -> str:
    """Relative where it lies below the working folder, which may be another one's on another node."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _masked(tuning: Tuning) -> Tuning:
    """The files are there to be passed on, and what is not written is printed."""
    return msgspec.structs.replace(
        tuning, command=masked_command(tuning.command), sbatch_options=masked_command(tuning.sbatch_options)
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
