"""After the job: traces are packed, and what processes told each other is counted and removed."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flatout.inside.protocol import File, complete_name, partial_name

_PATIENCE_S = 10.0
_LEVEL = 3  # half the time of the usual 6, for files 8 % larger


def wait_for(path: Path, pattern: str, but: Path) -> bool:
    """Wait for the other parents whose files match to end, for some seconds; whether all have."""
    deadline = time.monotonic() + _PATIENCE_S
    while not all(_has_ended(file) for file in path.glob(pattern) if file.name != but.name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _has_ended(host_file: Path) -> bool:
    try:
        return json.loads(host_file.read_text(encoding="utf-8")).get("end_unix_s") is not None
    except (OSError, ValueError):
        return False


def hosts_without_parent(path: Path) -> list[str]:
    """Nodes where ranks ran and no `flatout profile` did, as where `srun` has started them."""
    found = set()
    for file in path.glob(File.STEPS.glob):
        try:
            with file.open(encoding="utf-8") as lines:
                found.add(str(json.loads(lines.readline())["hostname"]))
        except (OSError, ValueError, KeyError):
            continue
    found |= {file.name.removeprefix(File.PROCESSES.before) for file in (path / File.STATE).glob(File.PROCESSES.glob)}
    return sorted(host for host in found if not (path / File.HOST.of(host)).exists())


def pack_traces(path: Path, hostnames: Collection[str], *, all_have_ended: bool) -> list[str]:
    """Pack the plain traces that ranks of these hosts have left; what went wrong, a line each.

    The training process writes them plain, as packing there would hold the job up.
    """
    folders = [path, *path.glob(f"{File.ATTEMPTS}/*")]
    traces = [file for folder in folders for file in folder.glob(File.TRACE.glob) if _is_of(file, hostnames)]
    if all_have_ended:
        parts = [part for folder in folders for part in folder.glob(partial_name(File.TRACE.glob))]
        for part in parts:  # of a rank that was killed while it wrote
            if _is_of(part, hostnames):
                part.unlink(missing_ok=True)
    with ThreadPoolExecutor(max_workers=min(len(os.sched_getaffinity(0)), 8)) as pool:
        return [problem for problem in pool.map(_pack, traces) if problem]


def _is_of(file: Path, hostnames: Collection[str]) -> bool:
    rank = File.TRACE.rank(complete_name(file.name))
    if rank is None:
        return False
    try:
        with (file.parent / File.STEPS.of(rank)).open(encoding="utf-8") as lines:
            return bool(json.loads(lines.readline())["hostname"] in hostnames)
    except (OSError, ValueError, KeyError):
        return False


def _pack(file: Path) -> str | None:
    packed = file.with_name(file.name + ".gz")
    partial = packed.with_name(partial_name(packed.name))
    try:
        with file.open("rb") as source, gzip.open(partial, "wb", compresslevel=_LEVEL) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        partial.replace(packed)
        file.unlink()
    except OSError as error:
        partial.unlink(missing_ok=True)
        return f"{file.name} was left unpacked: {(error.strerror or str(error)).lower()}"
    return None


def count_processes(state: Path, hostnames: Iterable[str]) -> Counter[str]:
    """How many Python processes the recorder was loaded into, by what they said: python, torch, old-python."""
    said = set()
    for hostname in hostnames:
        try:
            lines = (state / File.PROCESSES.of(hostname)).read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        said |= {(hostname, words[0], words[2]) for line in lines if len(words := line.split()) == 3}
    return Counter(what for _, _, what in said)


def tidy(path: Path) -> None:
    """Remove what is of no use any more, once no other host is still recording."""
    if all(_has_ended(file) for file in path.glob(File.HOST.glob)):
        shutil.rmtree(path / File.STATE, ignore_errors=True)
