"""Measure how many of the job's cores other processes keep busy: busy time minus that of the job and of Flatout.

In: /proc. Out: cores, as the mean since the last call. The job's processes are the descendants of the process that
started the sampler, and all processes whose environment says that they are recorded to its folder, with their
descendants. Time in interrupts is excluded: most of it serves the job's own network and disks. Time that a hypervisor
gave to other machines (steal) counts as foreign load. Other containers count too: their processes are invisible, but
their cores are busy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

import psutil

from flatout.inside.protocol import Variable

_MAX_OWN_SHARE = 0.05  # of a core, for scanning all processes: with thousands of them, scans are less frequent
_SETTLED_S = 2.0  # a process of this age surely has its final environment
_Key = tuple[int, int]  # PID and start time: a PID is reused


class _Process(NamedTuple):
    key: _Key
    parent: int
    own: int  # ticks
    children: int  # ticks of descendants that ended and were waited for


class ForeignLoad:
    """The load of other processes between two calls of `read`; the first call gives None.

    `idle_cores` is how many of the job's cores were idle between the last two calls that gave a load.
    """

    def __init__(self, roots: Collection[int], recording: str) -> None:
        self._roots = set(roots)
        self._mark = os.fsencode(f"{Variable.RECORDING}={os.path.realpath(recording)}")
        self._cores = sorted(os.sched_getaffinity(0))
        self._others: set[_Key] = set()  # processes known not to belong to the job
        self._job: dict[_Key, _Process] = {}
        self._busy: tuple[float, float] | None = None
        self.idle_cores: float | None = None
        self._due_s = 0.0
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")

    def read(self) -> float | None:
        """Return the load; None if unknown: at the first call, too soon after the last, or without /proc."""
        if time.monotonic() < self._due_s:
            return None
        began_cpu_s = time.thread_time()  # on a busy host, a scan may wait for a core: that costs nothing
        try:
            busy, job = self._busy_now(), self._job_now()
        except OSError:
            return None
        own_s, before = _ticks_between(self._job, job) * self._tick_s, self._busy
        self._busy, self._job = busy, job
        self._due_s = time.monotonic() + (time.thread_time() - began_cpu_s) / _MAX_OWN_SHARE
        if before is None or busy[1] <= before[1]:  # in a sandbox without counters, time does not advance
            return None
        elapsed_s = (busy[1] - before[1]) / len(self._cores)
        self.idle_cores = round(len(self._cores) - (busy[0] - before[0]) / elapsed_s, 3)
        return round(max(busy[0] - before[0] - own_s, 0.0) / elapsed_s, 3)

    def _busy_now(self) -> tuple[float, float]:
        """Return the busy and the total seconds of the allowed cores."""
        busy = total = 0.0
        counted = psutil.cpu_times(percpu=True)
        for core in self._cores:
            if core < len(counted):
                times = counted[core]
                work = times.user + times.nice + times.system + times.steal
                busy += work
                total += work + times.idle + times.iowait + times.irq + times.softirq
        return busy, total

    def _job_now(self) -> dict[_Key, _Process]:
        """Return the job's processes, including zombies, whose times can still be read."""
        processes = {process.key[0]: process for process in _all_processes()}
        now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) / self._tick_s
        settled = now_ticks - _SETTLED_S / self._tick_s
        marked = {pid for pid, process in processes.items() if self._is_marked(process.key, settled)}
        self._others &= {process.key for process in processes.values()}
        job: dict[_Key, _Process] = {}
        is_job: dict[int, bool] = {}
        for pid in processes:
            path = []
            at = pid
            while at in processes and at not in is_job:
                path.append(at)
                is_job[at] = at in self._roots or at in marked or processes[at].key in self._job
                if is_job[at]:
                    break
                at = processes[at].parent
            answer = is_job.get(at, False)
            for one in path:
                is_job[one] = answer
        for pid, process in processes.items():
            if is_job[pid]:
                job[process.key] = process
        return job

    def _is_marked(self, key: _Key, settled: float) -> bool:
        """Return whether a process is the job's, by its environment; another user's is unreadable and not the job's."""
        if key in self._job or key in self._others:
            return False
        try:
            with open(f"/proc/{key[0]}/environ", "rb") as file:
                is_marked = self._mark in file.read().split(b"\0")
        except OSError:
            is_marked = False
        if not is_marked and key[1] < settled:
            self._others.add(key)
        return is_marked


def _all_processes() -> Iterable[_Process]:
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # the process has ended
            continue
        if len(fields) < 20:
            continue
        own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        yield _Process((int(name), int(fields[19])), int(fields[1]), own, children)


def _ticks_between(before: dict[_Key, _Process], now: dict[_Key, _Process]) -> int:
    """Return the ticks that the job's processes used, including those that ended, or both started and ended, meanwhile.

    A parent that waits for a child gets all of the child's time; the part before the last call was counted then.
    """
    known = {key[0]: key for key in before}
    counted: dict[_Key, int] = {}  # by the nearest ancestor that still runs
    for key, process in before.items():
        if key in now:
            continue
        parent = known.get(process.parent)
        while parent is not None and parent not in now:
            parent = known.get(before[parent].parent)
        if parent is not None:
            counted[parent] = counted.get(parent, 0) + process.own + process.children
    total = 0
    for key, process in now.items():
        last = before.get(key)
        own, children = (last.own, last.children) if last is not None else (0, 0)
        total += process.own - own + max(process.children - children - counted.get(key, 0), 0)
    return total
