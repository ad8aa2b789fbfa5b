"""Runs whole commands and says what they cost: wall time, CPU time, peak memory of the process tree.

Time and memory are taken in different runs, because sampling the memory of a process takes time from it. Linux only.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

Run = dict[str, float]

_SAMPLE_S = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CommandError(Exception):
    """A measured command failed."""


def timed(command: Sequence[str]) -> Run:
    """One run, its standard output thrown away.

    `wall_s`: from start to end of the process. `cpu_s`: user and system time of it and its children. `other_cores`: how
    many cores did other work of the machine meanwhile, on average (a virtual machine's stolen time included).
    """
    busy, own = _busy_s(), _own_s()
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    _check(command, process.returncode)
    cpu_s = usage.ru_utime + usage.ru_stime
    others_s = _busy_s() - busy - (_own_s() - own)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "other_cores": max(0.0, others_s) / wall_s}


def peak_memory(command: Sequence[str]) -> Run:
    """One run, sampled every 10 ms.

    `peak_pss_bytes`: the largest sum, over the command and all its descendants, of the proportional set size: a page
    that several of them share counts once. `peak_rss_bytes`: the same with resident set sizes; it counts for each.
    """
    peak_pss = peak_rss = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            sizes = [_memory(pid) for pid in _tree(process.pid)]
            peak_pss = max(peak_pss, sum(pss for pss, _ in sizes))
            peak_rss = max(peak_rss, sum(rss for _, rss in sizes))
            time.sleep(_SAMPLE_S)
    _check(command, process.returncode)
    return {"peak_pss_bytes": peak_pss, "peak_rss_bytes": peak_rss}


def wait_for_quiet(limit_s: float) -> None:
    """Return when others used less than a tenth of a core for two seconds, or after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        busy = _busy_s()
        time.sleep(2)
        if _busy_s() - busy < 0.2:
            return


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def machine() -> dict[str, str | int]:
    """What the numbers depend on."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": model.partition(":")[2].strip() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def flatout() -> str:
    """The command of the environment that runs the benchmark."""
    command = Path(sys.executable).with_name("flatout")
    if not command.exists():
        sys.exit(f"error: {command} does not exist\nhint: `make demo`, then use .venv/bin/python")
    return str(command)


def repository() -> Path:
    return Path(__file__).resolve().parents[1]


def _check(command: Sequence[str], code: int) -> None:
    if code:
        raise CommandError(f"exit {code}: {' '.join(command)}")


def _busy_s() -> float:
    """Seconds that the cores of the machine were busy since it started, stolen ones included."""
    values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle, io_wait = values[3], values[4]
    return (sum(values) - idle - io_wait) / _TICKS_PER_S


def _own_s() -> float:
    """CPU seconds of this process and of its children that ended."""
    return sum(os.times()[:4])


def _tree(root: int) -> list[int]:
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue  # it has just ended
    return found


def _memory(pid: int) -> tuple[int, int]:
    """Proportional and resident set size in bytes; 0 for a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes: Mapping[str, int] = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes.get("Pss:", 0), sizes.get("Rss:", 0)
