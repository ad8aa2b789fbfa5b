"""`flatout run`: a command with the changes of a tuning, kept alive where that is asked for, and else as it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flatout.keep.hang import Hang
    from flatout.keep.ledger import Totals, Writer
    from flatout.keep.saving import Saving
    from flatout.launch import Ended

EVERY_S = "FLATOUT_CHECKPOINT_EVERY_S"  # as checkpoint/checkpointer.py reads it


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
    redact: Annotated[bool, typer.Option("--redact", help="Mask host names in what is written.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")] = False,
) -> None:
    """Run a training command with the changes of a tuned.toml, and keep it alive. Ends with the command's own code.

    Example: flatout run --config tuned.toml --max-restarts 3 -- torchrun --standalone --nproc-per-node 2 train.py
    """
    from flatout.emit import tuned_toml
    from flatout.launch import end_like, run_local, with_inside
    from flatout.records.change import ChangeSet
    from flatout.trial.command import TRIAL_DIR, describe, keeps_outputs_apart, trial_command
    from flatout.trial.patches import unapplied

    limit_s, watches_hangs = _hang_after(hang_after, max_restarts)
    check_resume(resume_arg, checkpoint, max_restarts)
    is_kept = bool(max_restarts) or watches_hangs or ledger is not None or metrics_port is not None
    is_kept = is_kept or checkpoint_folder is not None
    changes = tuned_toml.read(config).change_set() if config is not None else ChangeSet(changes=())
    made = trial_command(command, changes, Path.cwd())
    environment = with_inside(os.environ) | made.variables
    if dry_run:
        loads = {"PYTHONPATH": environment["PYTHONPATH"]} if changes.patches else {}
        print(describe(loads | made.variables, made.words))
        return
    if config is not None:
        names = ", ".join(change.name for change in changes.changes)
        _say(f"with {names or 'no change'}")
    if keeps_outputs_apart(command):
        _say(f"{TRIAL_DIR} is this folder: {Path.cwd()}")
    with TemporaryDirectory(prefix="flatout-") as reports:
        environment |= {"FLATOUT_REPORTS": reports} if changes.patches else {}
        environment |= {"FLATOUT_SAFE_SAVE": "1"} if checkpoint is not None else {}
        if is_kept:
            from flatout.keep.redact import redactor, without_tokens

            hosts = redactor() if redact else str
            ended = _keep(
                made.words,
                environment,
                Path(reports),
                max_restarts=max_restarts,
                hang_after_s=limit_s,
                watches_hangs=watches_hangs,
                resume=_resume(resume_arg or (), checkpoint),
                checkpoint_folder=checkpoint_folder,
                ledger=ledger,
                gpus=gpus,
                metrics=None if metrics_port is None else (metrics_address, metrics_port),
                clean=lambda text: hosts(without_tokens(text)),
            )
        else:
            ended = run_local(made.words, environment)
        for line in unapplied(Path(reports), changes):
            _say(f"not applied on this host: {line}")
    sys.stdout.flush()
    raise typer.Exit(end_like(ended))


def _say(text: str) -> None:
    print(f"flatout: {text}", file=sys.stderr, flush=True)


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
            _say(f"the checkpoint: {why}")
        if not is_there:
            _say(f"no checkpoint at {checkpoint} yet: the job begins anew")
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


def _num_visible(num_gpus: int, environment: dict[str, str]) -> int:
    """Of this host's GPUs, those that the job may use."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    return num_gpus if listed is None else min(num_gpus, len([one for one in listed.split(",") if one.strip()]))


def _choose_interval(
    folder: Path, ledger: Path, words: Sequence[str], environment: Mapping[str, str], writer: Writer
) -> dict[str, str]:
    """The variable that `flatout.checkpoint` reads, unless the user has set it."""
    if given := os.environ.get(EVERY_S):
        _say(f"a checkpoint every {given} s, as {EVERY_S} says")
        return {}
    saving, _ = _saving(folder, ledger, words, environment, writer)
    if saving is None:
        return {}
    _say(saving.describe())
    return {EVERY_S: f"{saving.every_s:.6g}"}


def _tell_levers(
    folder: Path, ledger: Path, words: Sequence[str], environment: Mapping[str, str], writer: Writer
) -> None:
    """At the end, when the most is known."""
    from flatout.cli.ledger import price_of
    from flatout.report.ledger_text import levers_text

    saving, totals = _saving(folder, ledger, words, environment, writer)
    if saving is not None:
        price = price_of(totals.gpu, None)
        _say(levers_text(saving.levers(totals.num_devices or 1, None if price is None else price[0])))


def _saving(
    folder: Path, ledger: Path, words: Sequence[str], environment: Mapping[str, str], writer: Writer
) -> tuple[Saving | None, Totals]:
    import msgspec

    from flatout.errors import FlatoutError
    from flatout.keep.hosts import num_nodes
    from flatout.keep.ledger import Totalling, read
    from flatout.keep.saving import choose

    totals = Totalling().totals()
    try:
        if ledger.is_file():  # else a pipe or a device, which gives nothing back
            totals = read(ledger)
        saving = choose(folder, totals, num_nodes=num_nodes(words, environment))
    except (FlatoutError, ArithmeticError, ValueError) as error:  # no reason not to run the job
        _say(f"how often to save is not chosen: {error}")
        return None, totals
    writer.write("saving", **msgspec.to_builtins(saving))
    return saving, totals


def _keep(
    words: Sequence[str],
    environment: dict[str, str],
    state: Path,
    *,
    max_restarts: int,
    hang_after_s: float | None,
    watches_hangs: bool,
    resume: Callable[[Sequence[str]], Sequence[str]],
    checkpoint_folder: Path | None,
    ledger: Path | None,
    gpus: int | None,
    metrics: tuple[str, int] | None,
    clean: Callable[[str], str],
) -> Ended:
    from contextlib import ExitStack

    from flatout import __version__
    from flatout.errors import FlatoutError
    from flatout.keep.attempt import Watched
    from flatout.keep.book import LedgerBook
    from flatout.keep.exporter import serving
    from flatout.keep.hosts import goes_on_without_host, without_host
    from flatout.keep.ledger import Writer
    from flatout.keep.supervise import Progress, Restarts, keep_alive
    from flatout.probe.nvml import Gpus
    from flatout.report.command import command_line

    gpus_here = Gpus()
    xids = gpus_here.xids()
    progress = Progress()
    path = ledger if ledger is not None else state / "ledger.jsonl"
    writer = Writer(path, clean=clean)
    book = LedgerBook(
        writer,
        progress,
        num_devices=gpus or _num_visible(len(gpus_here.facts()), environment) or None,
        command=command_line(words),
        tool=__version__,
        gpu=next((str(facts["name"]) for facts in gpus_here.facts() if "name" in facts), None),
    )

    def tell_hang(hang: Hang) -> None:
        _say(clean(hang.describe()))
        whole = [f"rank {rank}:\n{text}" for rank, text in sorted(hang.stacks.items())]
        for text in hang.main_threads() if ledger is not None else whole:
            print(clean(text.strip()), file=sys.stderr, flush=True)
        book.hangs(hang)

    def next_words(attempt: int, bad_host: str | None) -> Sequence[str]:
        nonlocal words
        if bad_host is not None:
            others = without_host(words, bad_host, environment)
            words = words if others is None else others
            job = environment.get("SLURM_JOB_ID")
            requeue = f"; `scontrol requeue {job}` takes the whole job elsewhere" if job else ""
            _say(clean(f"{bad_host} {'is left out' if others else 'failed, and there is no spare node' + requeue}"))
        if checkpoint_folder is not None:
            environment.update(_choose_interval(checkpoint_folder, path, words, environment, writer))
        return words if attempt == 0 else resume(words)

    watched = Watched(
        hang_after_s=hang_after_s,
        watches_hangs=watches_hangs,
        on_look=book.look,
        on_hang=tell_hang,
        on_problem=lambda text: _say(f"the watch over the job has ended by an error of its own: {text}"),
        read_xids=lambda: [entry["number"] for entry in xids.read() or ()],
    )
    with ExitStack() as stack:
        try:
            if metrics is not None:
                stack.enter_context(serving(path, *metrics, state=state, say=_say))
            ended = keep_alive(
                watched,
                Restarts(max_restarts, others_go_on=goes_on_without_host(words)),
                progress,
                next_words=next_words,
                environment=environment,
                state=state,
                book=book,
                say=lambda text: _say(clean(text)),
            )
        except FlatoutError as error:  # the command cannot be started, or the port is taken
            writer.write("end", code=error.exit_code, why=str(error))
            raise
    if checkpoint_folder is not None:
        _tell_levers(checkpoint_folder, path, words, environment, writer)
    writer.close()
    if writer.problem is not None:
        _say(f"the ledger is not complete: {writer.problem}")
    return ended
