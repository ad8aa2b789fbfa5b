"""The status of processes that Flatout did not start. In: a PID. Out: `WatchStatus`, as far as /proc and NVML show.

The PID's descendants that have `RANK` in their environment are ranks; without any, the process itself is shown. Steps
and their parts are unknown: nothing is loaded into the processes, and nothing is written to them.
"""

from __future__ import annotations

from contextlib import suppress

import psutil

from flatout.errors import InputError
from flatout.launch.process_identity import resident_bytes
from flatout.records.watch import RankState, RankStatus, WatchStatus
from flatout.secrets import masked_command
from flatout.watch.view.gpu_status import GpuReadings

_NO_STEPS = "steps are unknown: start the job with `flatout run --ledger FILE` or `flatout profile` to see them"
_MOST_CHARACTERS = 60


class ProcessStatus:
    """Reads one process and its descendants again and again."""

    def __init__(self, pid: int, gpus: GpuReadings) -> None:
        try:
            self._root = psutil.Process(pid)
            self._name = " ".join(masked_command(self._root.cmdline()))[:_MOST_CHARACTERS]
        except psutil.Error as error:
            raise InputError(f"process {pid} does not exist or is not yours", hint="pass a PID of the job") from error
        self._gpus = gpus
        self._ranks: dict[psutil.Process, int | None] = {}
        self._world_size: int | None = None

    def read(self) -> WatchStatus:
        self._find_ranks()
        gpus, gpu_of_pid = self._gpus.by_uuid(), self._gpus.by_pid()
        ranks = []
        for process, rank in self._ranks.items():
            ranks.append(
                RankStatus(
                    rank=rank,
                    host="",
                    pid=process.pid,
                    state=_state(process),
                    memory_bytes=resident_bytes(process.pid),
                    cores_busy=_cores_busy(process),
                    gpu=gpus.get(gpu_of_pid.get(process.pid, "")),
                )
            )
        return WatchStatus(
            name=self._name,
            program="attached",
            pid=self._root.pid,
            attempt=None,
            world_size=self._world_size,
            ranks=tuple(sorted(ranks, key=lambda rank: (rank.rank or 0, rank.pid or 0))),
            missing_ranks=(),
            step_s=None,
            goodput=None,
            devices=None,
            notes=(_NO_STEPS,),
        )

    def _find_ranks(self) -> None:
        """Add the ranks that have come since the last call; those that are gone stay, as lost."""
        with suppress(psutil.Error):
            for process in (self._root, *self._root.children(recursive=True)):
                if process not in self._ranks and (rank := self._rank_of(process)) is not None:
                    self._ranks[process] = rank
        if not self._ranks:
            self._ranks[self._root] = None

    def _rank_of(self, process: psutil.Process) -> int | None:
        """Return the rank in the process's environment; None for helpers of a rank, which inherit it."""
        try:
            rank = process.environ().get("RANK", "")
            parent = process.parent()
            if not rank.isdecimal() or (parent is not None and parent.environ().get("RANK") == rank):
                return None
            size = process.environ().get("WORLD_SIZE", "")
        except (psutil.Error, OSError):
            return None
        self._world_size = int(size) if size.isdecimal() else self._world_size
        return int(rank)


def _state(process: psutil.Process) -> RankState:
    try:
        status = process.status()
    except psutil.Error:
        return "lost"
    if status == psutil.STATUS_ZOMBIE:
        return "lost"
    return "stopped" if status == psutil.STATUS_STOPPED else "running"


def _cores_busy(process: psutil.Process) -> float | None:
    """Return the cores that the process kept busy since the last call; 0 in the first."""
    try:
        return float(process.cpu_percent()) / 100
    except psutil.Error:
        return None
