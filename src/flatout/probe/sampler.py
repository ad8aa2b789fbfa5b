"""`python -m flatout.probe.sampler FILE`: writes samples of this host to FILE as JSON lines until asked to stop.

It stops when its standard input ends, which happens however the parent ends; or, with `--watch PID`, when that process
ends. The first line holds the constant facts; each further line has `unix_s` and the counters that could be read. It
ignores signals that are meant for the job (Ctrl-C in a terminal).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import psutil

from flatout.probe import limits
from flatout.probe.client_counters import ClientCounters
from flatout.probe.foreign_load import ForeignLoad
from flatout.probe.host_counters import HostCounters
from flatout.probe.nvml import Gpus
from flatout.probe.xids import Xids

SCHEMA, VERSION = "flatout/samples", 1
INTERVAL_S = 0.5


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description="Write what this host does to a file until standard input ends.")
    parser.add_argument("file")
    parser.add_argument("--interval", type=float, default=INTERVAL_S)
    parser.add_argument("--watch", type=int, metavar="PID", help="end with this process, not with standard input")
    parser.add_argument("--storage", metavar="FILE", help="also write the counters of file systems, to this file")
    arguments = parser.parse_args()
    has_ended = _has_ended if arguments.watch is None else _Watched(arguments.watch).has_ended
    gpus = Gpus()
    xids = gpus.xids()
    of_flatout = {os.getpid(), os.getppid() if arguments.watch is None else arguments.watch}
    others = ForeignLoad(of_flatout, os.path.dirname(os.path.abspath(arguments.file)))
    storage = None if arguments.storage is None else ClientCounters(Path(arguments.storage))
    if storage is not None:
        storage.start()
    with open(arguments.file, "x", encoding="utf-8") as file:
        _write(file, about_host(gpus, arguments.interval) | {"xid_problem": xids.problem})
        sample(file, gpus, xids, others, arguments.interval, has_ended)
    if storage is not None:
        storage.finish()
    return 0


def about_host(gpus: Gpus, interval_s: float) -> dict[str, Any]:
    """Return the first line: the facts about the host that do not change."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "hostname": os.uname().nodename,
        "interval_s": interval_s,
        "kernel": platform.release(),
        "num_cores": os.cpu_count(),
        "cores_allowed": limits.allowed_cores(),
        "cores_allowed_ids": sorted(os.sched_getaffinity(0)),
        "cpu_quota": limits.cpu_quota(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": limits.memory_limit_bytes(),
        "gpus": gpus.facts(),
        "gpu_problem": gpus.problem,
    }


def sample(
    file: TextIO,
    gpus: Gpus,
    xids: Xids,
    others: ForeignLoad,
    interval_s: float,
    has_ended: Callable[[float], bool],
) -> None:
    """Write a line at each multiple of the interval; a late sample does not shift the later ones."""
    host = HostCounters()
    due = time.monotonic()
    while True:
        line = {"unix_s": round(time.time(), 3), **host.read()}
        if gpus.problem is None:
            line["gpus"] = gpus.read()
        _add(line, "cores_busy_by_others", others.read())
        _add(line, "xids", xids.read())
        _write(file, line)
        due = max(due + interval_s, time.monotonic())
        if has_ended(due - time.monotonic()):
            break
    last = xids.read()
    if last:  # the last sample can show why the job ended
        _write(file, {"unix_s": round(time.time(), 3), "xids": last})


def _add(line: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        line[name] = value


def _write(file: TextIO, value: dict[str, Any]) -> None:
    """Write a line at once; if the disk is full, the line is lost and sampling continues."""
    try:
        file.write(json.dumps(value, separators=(",", ":")) + "\n")
        file.flush()
    except OSError:
        return


def _has_ended(wait_s: float) -> bool:
    """Return whether standard input ended within `wait_s` seconds."""
    readable, _, _ = select.select([sys.stdin], [], [], max(wait_s, 0))
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


class _Watched:
    """A process, distinguished from a later one with the same PID by its start time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = self._read()

    def has_ended(self, wait_s: float) -> bool:
        """Return whether the process has ended, after waiting `wait_s` seconds."""
        time.sleep(max(wait_s, 0))
        return self._start is None or self._read() != self._start

    def _read(self) -> str | None:
        """Return the start time of the process in ticks; None if it is gone or a zombie."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]


if __name__ == "__main__":
    sys.exit(main())
