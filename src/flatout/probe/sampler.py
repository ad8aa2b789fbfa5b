"""`python -m flatout.probe.sampler FILE`: writes what this host does to FILE, a JSON object a line, until told to stop.

It stops when its standard input ends, which it does when its parent ends, however that happens. The first line says
what does not change; each further line has `unix_s` and the counters that could be read. Signals that are meant for the
job (Ctrl-C in a terminal) pass it by.
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
from typing import Any, TextIO

import psutil

from flatout.probe import limits
from flatout.probe.host_counters import HostCounters
from flatout.probe.nvml import Gpus

SCHEMA, VERSION = "flatout/samples", 1
INTERVAL_S = 0.5


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description="Write what this host does to a file until standard input ends.")
    parser.add_argument("file")
    parser.add_argument("--interval", type=float, default=INTERVAL_S)
    arguments = parser.parse_args()
    gpus = Gpus()
    with open(arguments.file, "x", encoding="utf-8") as file:
        _write(file, about_host(gpus, arguments.interval))
        sample(file, gpus, arguments.interval)
    return 0


def about_host(gpus: Gpus, interval_s: float) -> dict[str, Any]:
    """The first line."""
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


def sample(file: TextIO, gpus: Gpus, interval_s: float) -> None:
    """Write a line at each multiple of the interval; a sample that comes late does not move those after it."""
    host = HostCounters()
    due = time.monotonic()
    while True:
        line = {"unix_s": round(time.time(), 3), **host.read()}
        if gpus.problem is None:
            line["gpus"] = gpus.read()
        _write(file, line)
        due = max(due + interval_s, time.monotonic())
        if _has_ended(due - time.monotonic()):
            return


def _write(file: TextIO, value: dict[str, Any]) -> None:
    """A line at once; where the disk is full it is lost, and the sampling goes on."""
    try:
        file.write(json.dumps(value, separators=(",", ":")) + "\n")
        file.flush()
    except OSError:
        return


def _has_ended(wait_s: float) -> bool:
    """Whether standard input ended within so many seconds."""
    readable, _, _ = select.select([sys.stdin], [], [], max(wait_s, 0))
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


if __name__ == "__main__":
    sys.exit(main())
