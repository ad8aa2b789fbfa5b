"""Turn the options of `flatout submit` into the `JobRequest` that all schedulers take."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.change.launchers import launch_word
from flatout.emit import tuned_toml
from flatout.errors import OutputError, UsageError
from flatout.records.change import ChangeSet
from flatout.records.staging import DATA_SET_NAME
from flatout.records.tuning import Tuning
from flatout.submit.canary import canary_of
from flatout.submit.job import JobRequest
from flatout.submit.options import SubmitOptions
from flatout.submit.plan_file import read_planned

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_MAX_DIGITS = 6  # of a number of nodes
_QUEUE = re.compile(r"(?!.{64})[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_SBATCH_OPTIONS_OF_OURS = ("--output", "-o", "--wrap", "--array", "-a", "--parsable")


def job_request(options: SubmitOptions) -> JobRequest:
    """Return the job request: read the files that the options name, and check their contents.

    Raises InputError for a file that cannot be used, OutputError for a folder with files in it, and UsageError for
    options that contradict each other.
    """
    planned = None
    num_nodes, gpus_per_node = options.num_nodes, options.gpus_per_node
    if options.plan is not None:
        planned = read_planned(options.plan, num_nodes, gpus_per_node)
        num_nodes, gpus_per_node = planned.num_nodes, planned.gpus_per_node
    keep = options.keep.run_arguments((num_nodes or 1) * (gpus_per_node or 0))
    canary = canary_of(options.config, options.keep.ledger) if options.has_canary else None
    config = options.config if canary is None or canary.has_changes else None
    now = time.strftime("%Y%m%d-%H%M%S")
    return JobRequest(
        tuning=_tuning(options.command, config, num_nodes, keep),
        name=_checked_name(options.name or f"flatout-{now}"),
        folder=_new_folder(options.out, now),
        working_folder=Path.cwd(),
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        time_s=options.time_s,
        deadline_s=options.deadline_s,
        can_resume=options.can_resume,
        partitions=(options.partition,) if options.partition is not None else (),
        account=options.account,
        qos=options.qos,
        options=_sbatch_options(options.sbatch_options),
        image=options.image,
        queue=_checked_queue(options.queue),
        planned=planned,
        canary=canary,
        pods=options.pods,
        data_set=_checked_data_set(options.data_set),
    )


def _tuning(command: tuple[str, ...], config: Path | None, num_nodes: int | None, keep: tuple[str, ...]) -> Tuning:
    tuning = Tuning(command=command, changes=ChangeSet())
    if config is not None:
        tuned = tuned_toml.read(config)
        tuning = Tuning(
            command=command,
            changes=tuned.change_set(),
            num_trials=tuned.num_trials,
            machine=tuned.machine,
            versions=tuned.versions,
            date=tuned.date,
            config=str(config.resolve()),
        )
    # The number of hosts used for tuning says nothing about the hosts of this job.
    machine = {**tuning.machine, "num_hosts": str(num_nodes or _nodes_of(command) or 1)}
    return msgspec.structs.replace(tuning, keep=keep, machine=machine)


def _nodes_of(command: tuple[str, ...]) -> int | None:
    """Return the number of nodes in the arguments of a launcher other than torchrun, whose own `num_nodes` reads."""
    for launcher, flag in (("accelerate", "--num-machines"), ("deepspeed", "--num-nodes")):
        text = launch_word(command, launcher, flag)
        if text is not None and text.isdecimal() and 1 <= len(text) <= _MAX_DIGITS:
            return int(text)
    return None


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"`--name` must begin with a letter and have at most 52 lower-case letters, digits and `-`, but is `{name}`"
        )
    return name


def _checked_queue(queue: str | None) -> str | None:
    if queue is not None and _QUEUE.fullmatch(queue) is None:
        raise UsageError(
            "`--queue` must be the name of a LocalQueue, at most 63 lower-case letters, digits, `-` and `.`,"
            f" but is `{queue}`"
        )
    return queue


def _checked_data_set(name: str | None) -> str | None:
    if name is not None and DATA_SET_NAME.fullmatch(name) is None:
        raise UsageError(
            f"`--data-set` must have at most 52 lower-case letters, digits and `-`, but is `{name}`",
            hint="pass the name that `flatout data stage --emit` printed",
        )
    return name


def _new_folder(out: Path | None, now: str) -> Path:
    """Return the path of a folder for this submission alone; it need not exist yet."""
    if out is not None:
        if _has_files(out):
            raise OutputError(f"`{out}` already exists, and nothing is overwritten", hint="pass another --out")
        return out.absolute()
    parent = Path("flatout-out").absolute()
    folder = parent / f"submit-{now}"
    number = 2
    while folder.exists():
        folder = parent / f"submit-{now}-{number}"
        number += 1
    return folder


def _has_files(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.exists()


def _sbatch_options(text: str | None) -> tuple[str, ...]:
    try:
        options: Sequence[str] = shlex.split(text or "")
    except ValueError as error:
        raise UsageError(f"`--sbatch-options` cannot be parsed as shell arguments: {text}") from error
    for option in options:
        if option.partition("=")[0] in _SBATCH_OPTIONS_OF_OURS:
            raise UsageError(f"`--sbatch-options` cannot contain {option}: Flatout submits one job and sets its output")
    return tuple(options)
