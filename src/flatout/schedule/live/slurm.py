"""Read a Slurm cluster as a view, and perform actions on it, with Slurm's own commands. Each command has a time limit.

An `UnavailableError` is temporary, for example while slurmctld restarts: a controller reports it and retries.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from flatout.errors import FlatoutError, InputError
from flatout.schedule.live import slurm_read
from flatout.schedule.live.actions import Action
from flatout.schedule.live.view import ClusterView, JobView, NodeFailure, NodeView

_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_DOWN = re.compile(
    r"Unable to contact slurm controller|Connection refused|Socket timed out|Communication connection failure"
    r"|Zero Bytes were transmitted|slurm_persist_conn_open",
)


class UnavailableError(FlatoutError):
    """The scheduler does not answer at the moment."""


class RefusedError(FlatoutError):
    """The scheduler answered, but refused."""


class Scheduler(Protocol):
    """The operations that a controller needs from a scheduler."""

    def cluster(self) -> str: ...

    def read(self) -> ClusterView: ...

    def job(self, job_id: str) -> JobView | None: ...

    def perform(self, action: Action) -> None: ...


class Slurm:
    """A Slurm cluster. Node failures are read from the last `failures_window_s` of the accounting, if there is any."""

    def __init__(self, *, timeout_s: float = _TIMEOUT_S, failures_window_s: float = 86400.0) -> None:
        self._timeout_s, self._window_s = timeout_s, failures_window_s
        self._has_accounting: bool | None = None

    def cluster(self) -> str:
        found = re.search(r"^ClusterName\s*=\s*(\S+)", self._text("scontrol", "show", "config"), re.MULTILINE)
        if found is None:
            raise InputError("`scontrol show config` must name the cluster, but has no ClusterName")
        return found[1]

    def read(self) -> ClusterView:
        jobs = self._jobs()
        return ClusterView(
            now_unix_s=time.time(),
            jobs=jobs,
            nodes=self._nodes(),
            failures=tuple(self._failures()),
            reservations=tuple(
                re.findall(r"^ReservationName=(\S+)", self._text("scontrol", "show", "reservation", "-o"), re.MULTILINE)
            ),
        )

    def job(self, job_id: str) -> JobView | None:
        return next((job for job in self._jobs() if job.id == job_id), None)

    def perform(self, action: Action) -> None:
        """Perform an action. Raises RefusedError if Slurm refuses, UnavailableError if the outcome is unknown."""
        self._run(command_of(action))

    def history(self, since: str = "now-30days") -> str | None:
        """Return `sacct`'s list of ended jobs, for predictions; None if there is no accounting."""
        fields = "JobID,User,JobName,Partition,State,ElapsedRaw"
        try:
            return self._text("sacct", "-a", "-X", "-P", "-S", since, "-o", fields)
        except RefusedError:
            return None

    def _jobs(self) -> tuple[JobView, ...]:
        return slurm_read.read_jobs(self._run(("squeue", "--json", "--states=all")))

    def _nodes(self) -> tuple[NodeView, ...]:
        text = self._run(("sinfo", "--json"))
        if not slurm_read.has_nodes(text):
            text = self._run(("scontrol", "show", "nodes", "--json"))
        return slurm_read.read_nodes(text)

    def _failures(self) -> list[NodeFailure]:
        if self._has_accounting is False:
            return []
        asked = ("sacct", "-a", "-X", "-D", "-n", "-P", "--state=NODE_FAIL", "-o", "State,End,NodeList")
        try:
            text = self._run((*asked, "-S", f"now-{int(self._window_s)}seconds", "-E", "now"))
        except RefusedError:
            self._has_accounting = False
            return []
        self._has_accounting = True
        return slurm_read.read_failures(text)

    def _text(self, *command: str) -> str:
        return self._run(command).decode("utf-8", "replace")

    def _run(self, command: Sequence[str]) -> bytes:
        environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        try:
            # When a controller is killed, its command must end too, so that it does not act later on a changed cluster.
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
                preexec_fn=_ends_with_parent,  # safe, because there are no threads
            )
        except FileNotFoundError:
            raise InputError(
                f"`{command[0]}` is not installed here", hint="run it on a login or management node of Slurm"
            ) from None
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"`{command[0]}` did not answer in {self._timeout_s:.0f} s") from None
        if done.returncode == 0:
            return done.stdout
        said = _last_line(done.stderr)
        failure = UnavailableError if _DOWN.search(done.stderr.decode("utf-8", "replace")) else RefusedError
        raise failure(f"`{' '.join(command[:2])}` failed: {said}")


def command_of(action: Action) -> list[str]:
    """Return the `scontrol` command that performs an action."""
    target, value = action.target, action.value
    match action.kind:
        case "priority" | "nice" | "partition" | "qos":
            return ["scontrol", "update", f"jobid={target}", f"{action.kind}={value}"]
        case "hold" | "release" | "requeue":
            return ["scontrol", action.kind, target]
        case "requeue-hold":
            return ["scontrol", "requeuehold", target]
        case "job-reservation":
            return ["scontrol", "update", f"jobid={target}", f"reservationname={value}"]
        case "drain":
            return ["scontrol", "update", f"nodename={target}", "state=drain", f"reason={value}"]
        case "resume":
            return ["scontrol", "update", f"nodename={target}", "state=resume"]
        case "unreserve":
            return ["scontrol", "delete", f"reservation={target}"]
        case "reserve":
            asked = action.reservation
            assert asked is not None
            return [
                *("scontrol", "create", f"reservation={target}", f"users={asked.user}", "starttime=now"),
                *(f"nodes={','.join(asked.nodes)}", f"duration={asked.duration_min}", "flags=IGNORE_JOBS"),
            ]


def _ends_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no error message"
