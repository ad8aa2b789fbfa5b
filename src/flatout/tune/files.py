"""The folder of a tuning: its journal and lock, and what is written at its end."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import FlatoutError, OutputError
from flatout.launch import Launcher, LocalLauncher, SlurmLauncher
from flatout.launch.guard import end_marked
from flatout.launch.slurm import job_name
from flatout.predict.calibrate import Calibration, calibrate
from flatout.predict.history import append_history, outcome, read_history
from flatout.records.tuning import TuneResult
from flatout.report.command import masked_command
from flatout.trial.command import TRIAL_DIR, keeps_outputs_apart
from flatout.trial.journal import Heading, Journal
from flatout.tune.options import TuneOptions
from flatout.tune.result import is_better
from flatout.tune.runner import Runner, Say

JOURNAL = "journal.jsonl"
SHOWN_TARGETS = ("environment", "torchrun")  # as a diff, where nothing is written
RESULTS = ("tuned.toml", "tuning.json", "report.html")


def open_tuning(
    command: Sequence[str],
    folder: Path,
    options: TuneOptions,
    *,
    warmup: int | None,
    force: bool,
    say: Say,
) -> Runner:
    """The runner of a new tuning in `folder`, or of one that was interrupted there. Raises OutputError, InputError.

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
        elif any((folder / name).exists() for name in RESULTS):
            raise OutputError(f"{folder} has a finished tuning already", hint="choose another --out, or add --force")
        folder.mkdir(parents=True, exist_ok=True)
        if not is_ours:
            _lock(folder)
        shown = masked_command(command)
        asked = {name: repr(value) for name, value in msgspec.structs.asdict(options).items() if name != "budget_s"}
        journal = Journal(
            folder / JOURNAL,
            Heading(tool_version=__version__, command=tuple(shown), options={**asked, "warmup": repr(warmup)}),
        )
    except OSError as error:
        raise OutputError(f"{folder} cannot be written to: {(error.strerror or str(error)).lower()}") from error
    runs = f"{folder / 'runs'}{os.sep}"
    if num_left := end_marked(lambda environment: environment.get("FLATOUT_RECORDING", "").startswith(runs)):
        say(f"ended {num_left} process{'es' * (num_left > 1)} that a former tuning left")
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


def learned(path: Path) -> Calibration | None:
    """What former tunings say of the predictions; None where there is nothing, or it cannot be read."""
    try:
        outcomes = read_history(path).outcomes
    except (OSError, FlatoutError):
        return None
    return calibrate(outcomes) if outcomes else None


def learn(result: TuneResult, path: Path) -> None:
    """Add what this tuning measured of its predictions. A history that cannot be written is no error of the tuning."""
    machine = result.tuning.machine.get("device", "")
    outcomes = [
        outcome(one.prediction, one.verdict.speedup, machine, result.tuning.date)
        for one in result.tried
        if one.prediction is not None
        and one.verdict is not None
        and one.verdict.speedup is not None
        and one.verdict.interval is not None
        and one.outcome != "unsafe"
    ]
    if outcomes:
        with suppress(OSError, FlatoutError):
            path.parent.mkdir(parents=True, exist_ok=True)
            append_history(path, outcomes)


def write_results(result: TuneResult, folder: Path, *, apply: bool, command: Sequence[str]) -> list[str]:
    """Write tuned.toml (if something won), tuning.json and report.html; what to print of them and of other files."""
    from flatout.emit import tuned_toml
    from flatout.emit.targets import TARGETS
    from flatout.emit.write import diff, write
    from flatout.report.tuning_html import tuning_html
    from flatout.report.tuning_json import tuning_json

    (folder / "tuning.json").write_bytes(tuning_json(result, command))
    (folder / "report.html").write_text(tuning_html(result, command), encoding="utf-8")
    lines = [f"wrote {folder / 'report.html'}"]
    if not is_better(result):
        return lines
    lines.append(f"wrote {write(tuned_toml.emit(result.tuning), folder, force=True)}")
    others = []
    # A job that is started for good has no trial's folder: it writes where it is started, as with `flatout run`.
    started = tuple(word.replace(TRIAL_DIR, ".") for word in result.tuning.command)
    tuning = msgspec.structs.replace(result.tuning, command=started)
    for name, emit in TARGETS.items():
        emitted = emit(tuning)
        if name == "tuned-toml":
            continue
        if apply:
            lines.append(f"wrote {write(emitted, folder / 'files')}")
        elif name in SHOWN_TARGETS:
            lines += diff(emitted, folder / "files").splitlines()
        else:
            others.append(emitted.path)
    if others:
        lines.append(f"not written without --apply: the two above, and {', '.join(others)}")
    return lines


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
