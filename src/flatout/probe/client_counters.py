"""The counters of file systems, disks and control groups on this host, as the kernel and the clients write them.

In: the files of /proc and /sys, and `.stats` of JuiceFS mounts. Out: `host-<hostname>.storage.jsonl`, one line for each
time: `unix_s`, the text of each file by its path, and why a file could not be read. The texts are kept as they are:
`storage/` reads them later, and a new version of a format needs no new recording. Parts that say nothing about storage
are skipped, e.g. mounts of mountstats that are not NFS.

Reading a file of a mount whose server does not answer can wait forever. So all of it happens on a thread that nobody
waits for longer than `END_TIMEOUT_S`.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from flatout.probe.limits import control_groups
from flatout.probe.mounts import read_mounts
from flatout.secrets import open_private

SCHEMA, VERSION = "flatout/storage-counters", 1
INTERVAL_S = 2.0
LINES_PER_INTERVAL = 150  # then the interval doubles: a long job needs no more than some hundred lines
END_TIMEOUT_S = 2.0
_MAX_BYTES = 1 << 18  # of one file
_MAX_FILES = 200
_LCTL_TIMEOUT_S = 2.0

# Read once, at the beginning: what does not change.
_ONCE = ("/proc/self/mountinfo", "/sys/class/net/*/speed", "/sys/class/net/*/operstate")
_EACH = (
    "/proc/self/mountstats",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/vmstat",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/pressure/cpu",
)
_LUSTRE = tuple(
    f"{root}/{name}"
    for root in ("/proc/fs/lustre", "/sys/kernel/debug/lustre")
    for name in ("llite/*/stats", "llite/*/read_ahead_stats", "osc/*/stats", "mdc/*/stats")
)
_LCTL = ("llite.*.stats", "llite.*.read_ahead_stats", "osc.*.stats", "mdc.*.stats")
_OF_GROUP = {
    "io": ("io.stat", "io.max", "io.pressure"),
    "memory": ("memory.stat", "memory.events", "memory.pressure", "memory.current", "memory.max"),
    "cpu": ("cpu.pressure", "cpu.stat"),
    "blkio": (
        "blkio.throttle.io_service_bytes",
        "blkio.throttle.io_serviced",
        "blkio.throttle.read_bps_device",
        "blkio.throttle.read_iops_device",
    ),
}
_VMSTAT = ("pgmajfault", "workingset_refault", "pgpgin", "pswpin", "oom_kill")


class ClientCounters:
    """A thread that writes the counters at once, at intervals, and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-counters", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Have the last line written; give up after `END_TIMEOUT_S`, e.g. if a file server does not answer."""
        self._ends.set()
        self._thread.join(END_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with open_private(self._path, "x", encoding="utf-8") as file:
                self._write_lines(file)
        except OSError:  # a full disk or a file of this name: the job's recording has no counters then
            return

    def _write_lines(self, file: TextIO) -> None:
        about = {"schema": SCHEMA, "version": VERSION, "hostname": os.uname().nodename}
        _write(file, about | snapshot(_ONCE))
        interval_s, num_lines = INTERVAL_S, 0
        is_last = False
        while True:
            _write(file, snapshot(each_time()))
            if is_last:
                return
            num_lines += 1
            if num_lines % LINES_PER_INTERVAL == 0:
                interval_s *= 2
            is_last = self._ends.wait(interval_s)


def each_time() -> tuple[str, ...]:
    """Return the paths to read each time; a JuiceFS mount can appear while the job runs."""
    of_groups = [
        str(folder / name)
        for controller, names in _OF_GROUP.items()
        for folder in control_groups(controller)[:1]
        for name in names
    ]
    juicefs = [f"{mount.folder}/.stats" for mount in read_mounts() if "juicefs" in mount.kind.lower()]
    return (*_EACH, *_LUSTRE, *dict.fromkeys(of_groups), *juicefs)


def snapshot(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return the texts of the files that exist, and why one of them could not be read."""
    files: dict[str, str] = {}
    problems: dict[str, str] = {}
    for pattern in patterns:
        paths = sorted(glob.glob(pattern)) if "*" in pattern else [pattern]
        for path in paths[:_MAX_FILES]:
            try:
                files[path] = _read(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems[path] = (error.strerror or str(error)).lower()
    has_lustre = any("/lustre/" in path for path in files)
    if patterns is not _ONCE and not has_lustre and _mounts_lustre():
        _add_lctl(files, problems)
    line: dict[str, Any] = {"unix_s": round(time.time(), 3), "files": files}
    if problems:
        line["problems"] = problems
    return line


def _read(path: str) -> str:
    with open(path, "rb") as file:
        text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    reduce = _REDUCED.get(path)
    return text if reduce is None else reduce(text)


def _mounts_lustre() -> bool:
    return any(mount.kind.startswith("lustre") for mount in read_mounts())


def _add_lctl(files: dict[str, str], problems: dict[str, str]) -> None:
    """Add what Lustre's own tool prints: its files are in a folder that only root may list."""
    program = shutil.which("lctl")
    if program is None:
        problems["lctl"] = "there is no program lctl, and the counters in /sys/kernel/debug are for root only"
        return
    try:
        done = subprocess.run(
            [program, "get_param", *_LCTL], capture_output=True, text=True, timeout=_LCTL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problems["lctl"] = f"it failed: {type(error).__name__}"
        return
    if done.stdout.strip():
        files["lctl get_param"] = done.stdout[:_MAX_BYTES]
    else:
        problems["lctl"] = (done.stderr.strip().splitlines() or ["it printed nothing"])[0]


def of_nfs(text: str) -> str:
    """Return the devices of mountstats that are NFS, without those of other kinds, of which only the name is known."""
    kept = []
    is_nfs = False
    for line in text.splitlines():
        if line.startswith("device "):
            is_nfs = " with fstype nfs" in line
        if is_nfs:
            kept.append(line)
    return "\n".join(kept)


def without_options(text: str) -> str:
    """Return the lines of mountinfo without the options of each mount, which can hold what is private."""
    lines = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        words, kind_and_source = before.split(), after.split()[:2]
        if separator and len(words) >= 5:
            lines.append(" ".join([*words[:5], "-", *kind_and_source]))
    return "\n".join(lines)


def _of_vmstat(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith(_VMSTAT))


_REDUCED: dict[str, Callable[[str], str]] = {
    "/proc/self/mountinfo": without_options,
    "/proc/self/mountstats": of_nfs,
    "/proc/vmstat": _of_vmstat,
}


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, separators=(",", ":")) + "\n")
    file.flush()
