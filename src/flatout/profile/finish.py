"""Finish a recording after the job: pack the traces, count the recorded processes, remove the state folder."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from flatout.input_files import MAX_LINE_BYTES, decode_json, open_file, read_bytes, read_text
from flatout.inside.protocol import File, complete_name, partial_name

_TRACES = (File.TRACE, File.STALL_TRACE)
_TIMEOUT_S = 10.0
_LEVEL = 3  # half the time of the usual level 6, for files that are 8 % larger


class _HostEnd(msgspec.Struct, frozen=True):
    """What a file of a host says of its end."""

    end_unix_s: float | None = None


class _StepHeader(msgspec.Struct, frozen=True):
    """What the first line of a rank's steps says of its host."""

    hostname: str


def wait_for(path: Path, pattern: str, but: Path) -> bool:
    """Wait a few seconds for the other parents with matching files to end; return whether all have ended."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not all(_has_ended(file) for file in path.glob(pattern) if file.name != but.name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _has_ended(host_file: Path) -> bool:
    try:
        return decode_json(read_bytes(host_file), _HostEnd).end_unix_s is not None
    except (OSError, msgspec.DecodeError):
        return False


def hosts_without_parent(path: Path) -> list[str]:
    """Return the nodes where ranks ran but no `flatout profile`, e.g. because `srun` started only the ranks."""
    of_ranks = (_hostname_of(file) for file in path.glob(File.STEPS.glob))
    of_processes = (File.PROCESSES.part(file.name) for file in (path / File.STATE).glob(File.PROCESSES.glob))
    hosts = {host for host in (*of_ranks, *of_processes) if host is not None}
    return sorted(host for host in hosts if not (path / File.HOST.of(host)).exists())


def _hostname_of(step_file: Path) -> str | None:
    """Return the host that a rank recorded in its step file; None if the file cannot be read."""
    try:
        with open_file(step_file) as lines:
            return decode_json(lines.readline(MAX_LINE_BYTES), _StepHeader).hostname
    except (OSError, msgspec.DecodeError):
        return None


def pack_traces(path: Path, hostnames: Collection[str], *, all_have_ended: bool) -> list[str]:
    """Pack the plain traces that ranks of these hosts have left; return the problems, one line each.

    The training process writes plain traces, because packing there would delay the job.
    """
    folders = [path, *path.glob(f"{File.ATTEMPTS}/*")]
    found = [file for folder in folders for kind in _TRACES for file in folder.glob(kind.glob)]
    traces = [file for file in found if _is_of(file, hostnames)]
    if all_have_ended:
        parts = [part for folder in folders for kind in _TRACES for part in folder.glob(partial_name(kind.glob))]
        for part in parts:  # left by a rank that was killed while writing
            if _is_of(part, hostnames):
                part.unlink(missing_ok=True)
    with ThreadPoolExecutor(max_workers=min(len(os.sched_getaffinity(0)), 8)) as pool:
        problems = pool.map(_pack, traces)
        return [problem for problem in problems if problem is not None]


def _is_of(trace: Path, hostnames: Collection[str]) -> bool:
    name = complete_name(trace.name)
    rank = next((rank for kind in _TRACES if (rank := kind.rank(name)) is not None), None)
    return rank is not None and _hostname_of(trace.parent / File.STEPS.of(rank)) in hostnames


def _pack(file: Path) -> str | None:
    packed = file.with_name(file.name + ".gz")
    partial = packed.with_name(partial_name(packed.name))
    try:
        with open_file(file) as source, gzip.open(partial, "wb", compresslevel=_LEVEL) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        partial.replace(packed)
        file.unlink()
    except OSError as error:
        partial.unlink(missing_ok=True)
        return f"{file.name} was left unpacked: {(error.strerror or str(error)).lower()}"
    return None


def count_processes(state: Path, hostnames: Iterable[str]) -> Counter[str]:
    """Return how many Python processes of these hosts have recorded each ProcessEvent."""
    noted = set()
    for hostname in hostnames:
        try:
            lines = read_text(state / File.PROCESSES.of(hostname), errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) == 3:
                pid, _, event = words
                noted.add((hostname, pid, event))
    return Counter(event for _, _, event in noted)


def tidy(path: Path) -> None:
    """Remove the state folder, once no host is still recording."""
    if all(_has_ended(file) for file in path.glob(File.HOST.glob)):
        shutil.rmtree(path / File.STATE, ignore_errors=True)
