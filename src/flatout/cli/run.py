"""`flatout run`: a command with the changes of a tuning, kept alive where that is asked for, and else as it is."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.run_kept import keep, say
from flatout.inside.protocol import Variable

if TYPE_CHECKING:
    from flatout.records.change import ChangeSet


def run(
    command: Annotated[list[str], typer.Argument(help="The training command, after `--`.", show_default=False)],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `flatout tune` wrote: tuned.toml.", show_default=False)
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(metavar="N", min=0, help="Start the job again after a failure, at most so often.")
    ] = 0,
    hang_after: Annotated[
        str,
        typer.Option(
            metavar="auto|off|SECONDS",
            help="End a job that hangs; auto learns from its steps how long is too long.",
            show_default="auto with --max-restarts, else off",
        ),
    ] = "",
    resume_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARGUMENT",
            help="Added to the command on a restart, once there is a checkpoint: the script's own flag to resume.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The script's checkpoint, for --resume-arg.", show_default=False),
    ] = None,
    checkpoint_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The script's folder of flatout.checkpoint: how often it saves is chosen from what was measured.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add to this goodput ledger: where each GPU-second went.", show_default=False
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="End the same job first, where an earlier `flatout run` was killed and it runs on."
        ),
    ] = False,
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A recording of the same job, for the ledger: its steps' shares of communication and waiting.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="GPUs that the job was given, for the ledger.",
            show_default="NVML's, else one a rank",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Metrics for Prometheus on this port.", show_default=False),
    ] = None,
    metrics_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where --metrics-port listens.")
    ] = "127.0.0.1",
    machine_code: Annotated[
        int | None,
        typer.Option(
            metavar="CODE",
            min=1,
            max=255,
            help="End with this code where the machine is at fault, so that the scheduler takes another one.",
            show_default=False,
        ),
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Mask host names in what is written.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")] = False,
) -> None:
    """Run a training command with the changes of a tuned.toml, and keep it alive. Ends with the command's own code.

    Example: flatout run --config tuned.toml --max-restarts 3 -- torchrun --standalone --nproc-per-node 2 train.py
    """
    from flatout.emit import tuned_toml
    from flatout.errors import InputError, UsageError
    from flatout.launch import end_like, run_local, with_inside
    from flatout.records.change import ChangeSet
    from flatout.trial.command import TRIAL_DIR, describe, keeps_outputs_apart, trial_command
    from flatout.trial.patches import unapplied

    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise InputError("the working folder is gone", hint="change to one that is there") from None
    limit_s, watches_hangs = _hang_after(hang_after, max_restarts)
    check_resume(resume_arg, checkpoint, max_restarts)
    if recording is not None and ledger is None and metrics_port is None:
        raise UsageError(
            "`--recording` is for the ledger, but there is none", hint="--ledger ledger.jsonl, or --metrics-port 9464"
        )
    if checkpoint_folder is not None and checkpoint_folder.exists() and not checkpoint_folder.is_dir():
        raise UsageError(
            f"`--checkpoint-folder` must be a folder, but {checkpoint_folder} is a file",
            hint="for the one file of a script: --checkpoint",
        )
    is_kept = bool(max_restarts) or watches_hangs or ledger is not None or metrics_port is not None
    is_kept = is_kept or checkpoint_folder is not None or machine_code is not None
    tuned = tuned_toml.read(config) if config is not None else None
    changes = tuned.change_set() if tuned is not None else ChangeSet(changes=())
    if max_restarts:
        command = _without_own_restarts(command, max_restarts)
    made = trial_command(command, changes, folder)
    environment = with_inside(os.environ) | made.variables
    if dry_run:
        loads = {"PYTHONPATH": environment["PYTHONPATH"]} if changes.patches else {}
        print(describe(loads | made.variables, made.words))
        return
    if tuned is not None:
        names = ", ".join(change.name for change in changes.changes)
        say(f"with {names or 'no change'}")
        _tell_of_another_script(tuned.command, command, changes)
    if keeps_outputs_apart(command):
        say(f"{TRIAL_DIR} is this folder: {folder}")
    with TemporaryDirectory(prefix="flatout-") as reports:
        environment |= {Variable.REPORTS: reports} if changes.patches else {}
        environment |= {Variable.SAFE_SAVE: "1"} if checkpoint is not None else {}
        if is_kept:
            from flatout.keep.redact import redactor, without_tokens

            hosts = redactor() if redact else str
            ended = keep(
                made.words,
                environment,
                Path(reports),
                max_restarts=max_restarts,
                machine_code=machine_code,
                hang_after_s=limit_s,
                watches_hangs=watches_hangs,
                resume=_resume(resume_arg or (), checkpoint),
                checkpoint=checkpoint,
                checkpoint_folder=checkpoint_folder,
                ledger=ledger,
                recording=recording,
                takes_over=take_over,
                gpus=gpus,
                metrics=None if metrics_port is None else (metrics_address, metrics_port),
                clean=lambda text: hosts(without_tokens(text)),
            )
        else:
            ended = run_local(made.words, environment)
        for line in unapplied(Path(reports), changes):
            say(f"not applied on this host: {line}")
    sys.stdout.flush()
    raise typer.Exit(end_like(ended))


def _tell_of_another_script(before: Sequence[str], command: Sequence[str], changes: ChangeSet) -> None:
    """Arguments were tried on one script; the same words may mean something else to another one."""
    tried, given = ({Path(word).name for word in words if word.endswith(".py")} for words in (before, command))
    own = [change.argument for change in changes.changes if change.argument is not None]
    arguments = [word for argument in own for words in argument.words for word in words]
    if arguments and tried and given and tried.isdisjoint(given):
        say(
            f"tuned on {', '.join(sorted(tried))}: {', '.join(sorted(given))} gets its arguments"
            f" {shlex.join(arguments)} all the same"
        )


def _without_own_restarts(command: list[str], max_restarts: int) -> list[str]:
    """One budget: torchrun's own restarts would come on top of ours, and know nothing of what failed."""
    from flatout.change.launchers import launch_value, with_launch_words

    own = launch_value(command, "torchrun", "--max-restarts")
    if own in (None, "0"):
        return command
    say(
        f"torchrun's own --max-restarts is 0 instead of {own}: Flatout starts the job again, "
        f"at most {max_restarts} times"
    )
    return list(with_launch_words(command, "torchrun", ("--max-restarts=0",)))


def _hang_after(text: str, max_restarts: int) -> tuple[float | None, bool]:
    """Seconds, or None to learn them; and whether to look for hangs at all."""
    from flatout.errors import UsageError

    if text in ("", "auto", "off"):
        return None, text == "auto" or (text == "" and max_restarts > 0)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value < 1e9:
        raise UsageError(f"`--hang-after` must be auto, off or a number of seconds from 1 on, but got {text}")
    return value, True


def check_resume(words: Sequence[str] | None, checkpoint: Path | None, max_restarts: int) -> None:
    from flatout.errors import UsageError

    if words and checkpoint is None:
        raise UsageError(
            "`--resume-arg` is added once there is a checkpoint, but no `--checkpoint` says where it is",
            hint="name the file that the script writes: --checkpoint out/ckpt.pt",
        )
    if words and not max_restarts:
        raise UsageError("`--resume-arg` is for restarts, but `--max-restarts` is 0", hint="--max-restarts 3, say")


def _resume(words: Sequence[str], checkpoint: Path | None) -> Callable[[Sequence[str]], Sequence[str]]:
    """The command of a restart, with the script's own flag to resume where it can."""
    import shlex

    from flatout.change.arguments import with_arguments
    from flatout.keep.resume import can_resume
    from flatout.records.change import Argument

    added = tuple(tuple(shlex.split(word)) for word in words)

    def again(command: Sequence[str]) -> Sequence[str]:
        if checkpoint is None or not added:
            return command
        is_there, why = can_resume(checkpoint, _latest_good())
        if why:
            say(f"the checkpoint: {why}")
        if not is_there:
            say(f"no checkpoint at {checkpoint} yet: the job begins anew")
            return command
        return with_arguments(command, [Argument(words=added)])

    return again


_SCRIPTED = "flatout.checkpoint.scripted"


def _latest_good() -> Callable[[Path], tuple[Path | None, str]] | None:
    """What verifies a script's checkpoint, in a Flatout that has it."""
    from importlib import import_module

    try:
        found: Callable[[Path], tuple[Path | None, str]] = import_module(_SCRIPTED).latest_good
    except (ImportError, AttributeError):
        return None
    return found
