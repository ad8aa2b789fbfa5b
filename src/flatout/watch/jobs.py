"""Find the jobs of `flatout run` and `flatout profile` on this host. In: this user's processes. Out: `RunningJob`s.

The processes of a job name the folder of its heartbeats or its recording in their environment, so a job is found for as
long as one of its processes lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from flatout.errors import InputError
from flatout.inside.protocol import Variable
from flatout.keep.other_runs import read_about
from flatout.launch import with_environment

Program = Literal["flatout run", "flatout profile"]
_START = "start the job with `flatout run -- COMMAND`, or pass the PID of another one with --attach"


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on this host."""

    program: Program
    name: str
    pid: int  # of `flatout run`; of a profile, the job's first process
    folder: Path  # the state of the run, or the recording
    pids: tuple[int, ...]  # of the job's processes
    ledger: Path | None = None


def running_jobs() -> list[RunningJob]:
    """Return the jobs of this user on this host, the oldest first."""
    runs: dict[Path, list[psutil.Process]] = {}
    recordings: dict[Path, list[psutil.Process]] = {}
    for process in with_environment(_is_of_a_job):
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if heartbeats := environment.get(Variable.HEARTBEAT):
                runs.setdefault(Path(heartbeats).parent, []).append(process)
            elif recording := environment.get(Variable.RECORDING):
                recordings.setdefault(Path(recording), []).append(process)
    jobs = [job for state, processes in runs.items() if (job := _run_in(state, processes)) is not None]
    jobs += [_profile_in(folder, processes) for folder, processes in recordings.items()]
    return sorted(jobs, key=lambda job: min(job.pids))


def choose_job(name: str | None) -> RunningJob:
    """Return the job with this name, PID or folder; without a name, the only job. Raise InputError otherwise."""
    jobs = running_jobs()
    matching = jobs if name is None else [job for job in jobs if _is_called(job, name)]
    if len(matching) == 1:
        return matching[0]
    if not jobs:
        raise InputError("no job of `flatout run` or `flatout profile` runs here", hint=_START)
    listed = "; ".join(f"{job.pid} ({job.name})" for job in matching or jobs)
    if not matching:
        raise InputError(f"no running job is called {name}", hint=f"running: {listed}")
    which = "jobs run here" if name is None else f"running jobs are called {name}"
    raise InputError(f"{len(matching)} {which}", hint=f"pass the PID of one: {listed}")


def _is_of_a_job(environment: Iterable[str]) -> bool:
    names = set(environment)
    is_trial = Variable.TUNING in names
    return not is_trial and (Variable.HEARTBEAT in names or Variable.RECORDING in names)


def _is_called(job: RunningJob, name: str) -> bool:
    is_number = name.isdecimal() and int(name) in (job.pid, *job.pids)
    return is_number or name == job.name or Path(name).absolute() in (job.folder.absolute(), job.ledger)


def _run_in(state: Path, processes: list[psutil.Process]) -> RunningJob | None:
    about = read_about(state)
    if about is None:
        return None
    return RunningJob(
        program="flatout run",
        name=about.job or about.script or about.command,
        pid=about.pid,
        folder=state,
        pids=tuple(sorted(process.pid for process in processes)),
        ledger=Path(about.ledger) if about.ledger is not None else None,
    )


def _profile_in(folder: Path, processes: list[psutil.Process]) -> RunningJob:
    pids = tuple(sorted(process.pid for process in processes))
    return RunningJob(program="flatout profile", name=folder.name, pid=pids[0], folder=folder, pids=pids)
