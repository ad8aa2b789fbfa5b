"""Find jobs of other `flatout run`s on this host, so that no two jobs write to the same checkpoints.

A `flatout run` that gets SIGKILL leaves its job running, unmonitored: a job that runs for days should not end because
its monitor was killed. Each run describes itself in its own folder. The processes of its job have the folder's path in
their environment, so the next run finds them as long as one of them lives. Only processes of this user on this host
are seen.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from flatout.errors import InputError
from flatout.input_files import decode_written_json, read_bytes
from flatout.inside.protocol import Variable
from flatout.launch import end_marked, with_environment
from flatout.launch.process_identity import is_alive, own_namespace, start_ticks
from flatout.records.expectation import StepExpectation
from flatout.records.watch import PeakTime
from flatout.secrets import write_private

_NAME = "run.json"
_KILLED_S = 15.0  # the time that the kernel may need after a SIGKILL
_GRACE_S = 30.0  # the time for a script to save after a SIGTERM


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A `flatout run`. Paths are absolute, with links resolved."""

    pid: int
    ticks: int  # start time; together with the PID it identifies the process uniquely
    pid_namespace: str  # in a different namespace, such as a container's, the PID refers to a different process
    command: str
    folder: str
    checkpoints: tuple[str, ...] = ()  # files and folders
    ledger: str | None = None
    is_part: bool = False  # other nodes run parts of the same job
    job: str | None = None  # the job's name, from its scheduler or from torchrun's rendezvous
    script: str | None = None  # the name of the script or module that the command runs; None: of an older Flatout
    expectation: StepExpectation | None = None  # what the tuning of --config measured
    peak_time: PeakTime | None = None


class Other(msgspec.Struct, frozen=True, kw_only=True):
    about: RunInfo
    state: Path
    pid: int  # the first process of the job
    is_watched: bool
    shared: str  # resources that both runs use
    is_in_the_way: bool  # it runs the same job, or writes to the same checkpoints
    is_same_job: bool  # it has the same script, and no other name

    def describe(self) -> str:
        return (
            f"a job whose `flatout run` was killed is still running, unmonitored, with the same {self.shared}: "
            f"process {self.pid}, {self.about.command}"
        )


def about_this(
    command: str,
    checkpoints: tuple[Path, ...],
    ledger: Path | None,
    *,
    is_part: bool,
    job: str | None = None,
    script: str | None = None,
) -> RunInfo:
    pid = os.getpid()
    return RunInfo(
        pid=pid,
        ticks=start_ticks(pid),
        pid_namespace=own_namespace(),
        command=command,
        folder=os.getcwd(),
        checkpoints=tuple(os.path.realpath(path) for path in checkpoints),
        ledger=os.path.realpath(ledger) if ledger is not None and _is_kept(ledger) else None,
        is_part=is_part,
        job=job,
        script=script,
    )


def write_about(state: Path, about: RunInfo) -> None:
    partial = state / f".{_NAME}"
    # names may not be valid UTF-8, which msgspec refuses to write
    write_private(partial, json.dumps(msgspec.to_builtins(about)))
    partial.replace(state / _NAME)


def others(mine: RunInfo) -> Iterator[Other]:
    """Return the runs that conflict with this one, or whose jobs are unmonitored."""
    found: dict[Path, list[psutil.Process]] = {}
    around = Path(os.environ.get(Variable.HEARTBEAT, "")).parent  # the run that this one is nested in, if any
    for process in with_environment(lambda environment: Variable.HEARTBEAT in environment):
        with suppress(psutil.Error, OSError):
            found.setdefault(Path(process.environ()[Variable.HEARTBEAT]).parent, []).append(process)
    for state, processes in found.items():
        pids = {process.pid for process in processes}
        if state == around or (about := read_about(state)) is None:  # a run without a description has ended normally
            continue
        # Across a container's boundary it cannot be seen whether a run is alive, so it counts as alive.
        is_watched = about.pid_namespace != own_namespace() or is_alive(about.pid, about.ticks)
        shared = _shared(mine, about, is_watched=is_watched)
        is_in_the_way = shared is not None
        if shared is None and not is_watched and mine.ledger is not None and mine.ledger == about.ledger:
            shared = f"ledger {mine.ledger}"
        if shared is None:
            continue
        roots = [process for process in processes if _parent(process) not in pids]
        first = min(roots or processes, key=lambda process: process.create_time())
        yield Other(
            about=about,
            state=state,
            pid=first.pid,
            is_watched=is_watched,
            shared=shared,
            is_in_the_way=is_in_the_way,
            is_same_job=_is_same_job(mine, about),
        )


def refuse(other: Other) -> InputError:
    about = other.about
    if other.is_watched:
        return InputError(
            f"another `flatout run` (process {about.pid}) runs a job with the same {other.shared}: {about.command}",
            hint=f"end it first (kill {about.pid}), or give this job its own checkpoint path",
        )
    if not other.is_same_job:
        return InputError(
            other.describe(),
            hint=f"it is another job, which --take-over does not end: `kill {other.pid}` ends it",
        )
    return InputError(
        other.describe(),
        hint=f"--take-over ends it and resumes from its checkpoint; `kill {other.pid}` only ends it",
    )


def end(other: Other) -> None:
    """End an unmonitored job: SIGTERM, then SIGKILL after half a minute. Raise InputError if it still has not ended."""

    def is_meant(environment: Mapping[str, str]) -> bool:
        folder = environment.get(Variable.HEARTBEAT)
        return folder is not None and Path(folder).parent == other.state

    end_marked(is_meant, grace_s=_GRACE_S)
    until = time.monotonic() + _KILLED_S
    while left := list(with_environment(is_meant)):
        if time.monotonic() >= until:
            numbers = ", ".join(str(process.pid) for process in left)
            raise InputError(f"processes {numbers} of the job to take over did not exit", hint="check these processes")
        time.sleep(0.1)
    if other.state.name.startswith("flatout-"):  # as the killed run would have done
        shutil.rmtree(other.state, ignore_errors=True)


def _shared(mine: RunInfo, other: RunInfo, *, is_watched: bool) -> str | None:
    if not (is_watched and mine.is_part and other.is_part and mine.job == other.job):
        for path in mine.checkpoints:
            if path in other.checkpoints:
                return f"checkpoint {path}"
    has_same_command = (mine.folder, mine.command) == (other.folder, other.command)
    if not is_watched and has_same_command and _is_same_job(mine, other):
        return f"command in {mine.folder}"
    return None


def _is_same_job(mine: RunInfo, other: RunInfo) -> bool:
    """Whether two runs may be of one job: not if their names differ, or the scripts that they run."""
    if mine.job != other.job and None not in (mine.job, other.job):
        return False
    return mine.script == other.script or None in (mine.script, other.script)


def read_about(state: Path) -> RunInfo | None:
    try:
        return msgspec.convert(decode_written_json(read_bytes(state / _NAME), has_file_names=True), RunInfo)
    except (OSError, ValueError):
        return None


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _is_kept(ledger: Path) -> bool:
    return ledger.is_file() or not ledger.exists()  # not a pipe or a device, which many runs may share
