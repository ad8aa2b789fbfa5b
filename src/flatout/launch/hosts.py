"""Run one command on each of several hosts, through srun or ssh, all at the same time.

In: hosts, a command, how to reach them. Out: by host, its standard output, or the reason why there is none. Nothing
prompts for a password or a key, and nothing is copied to the hosts. A host that does not answer delays the result only
until the limit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal

import msgspec

from flatout.errors import InputError, UsageError

Via = Literal["srun", "ssh"]
_MOST_AT_ONCE = 32
_MOST_HOSTS = 100_000
_PATTERN = re.compile(r"(?:[^\[\]]*\[[^\[\]]+\])*[^\[\]]*")
_PARTS = re.compile(r"([^\[]*)(?:\[([^\[\]]*)\]|$)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_HOST = re.compile(r"[A-Za-z0-9_][\w.@:-]*")  # a leading dash would be an option


class HostOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Standard output of a host's command; None, with the reason, if the command failed."""

    data: bytes | None = None
    problem: str = ""


def host_names(text: str) -> list[str]:
    """Split `a,b,c` and expand `node[1-8]`. Raises UsageError for an invalid host name or pattern."""
    names: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):
        names += _expanded(item) if "[" in item or "]" in item else [item] * bool(item)
    invalid = [name for name in names if not _HOST.fullmatch(name)]
    if invalid or not names:
        raise UsageError(f"no host name can be `{(invalid or [text])[0]}`", hint="flatout doctor --hosts node1,node2")
    return list(dict.fromkeys(names))


def _expanded(pattern: str) -> list[str]:
    """Return the names of a pattern of Slurm's grammar: `rack[1-2]-node[01-03,7]`, with leading zeros kept."""
    if not _PATTERN.fullmatch(pattern):
        raise UsageError(f"`{pattern}` must have pairs of brackets with numbers", hint="node[1-8] or node[01-04,7]")
    names = [""]
    for text, ranges in _PARTS.findall(pattern):
        numbers = _numbers(pattern, ranges) if ranges else [""]
        if len(names) * len(numbers) > _MOST_HOSTS:
            raise UsageError(f"`{pattern}` must name at most {_MOST_HOSTS:,} hosts")
        names = [f"{name}{text}{number}" for name in names for number in numbers]
    return names


def _numbers(pattern: str, ranges: str) -> list[str]:
    """Return the numbers of `01-03,7`."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            raise UsageError(f"`{part}` in `{pattern}` must be a number or a range of numbers", hint="node[1-8]")
        if last - first >= _MOST_HOSTS:
            raise UsageError(f"`{pattern}` must name at most {_MOST_HOSTS:,} hosts")
        width = len(match[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers


def way_to(hosts: Sequence[str], environment: Mapping[str, str] = os.environ) -> Via:
    """Return `srun` within a Slurm job or if Slurm knows all of the hosts, or else `ssh`."""
    if not shutil.which("srun"):
        return "ssh"
    if "SLURM_JOB_ID" in environment:
        return "srun"
    if not shutil.which("scontrol"):
        return "ssh"
    try:
        codes = [
            subprocess.run(["scontrol", "show", "node", host], capture_output=True, check=False, timeout=20).returncode
            for host in hosts
        ]
    except subprocess.TimeoutExpired:
        return "ssh"
    return "ssh" if any(codes) else "srun"


def on_hosts(hosts: Sequence[str], command: Sequence[str], *, via: Via, limit_s: float) -> dict[str, HostOutput]:
    """Run `command` once on each host. Raise InputError if srun or ssh is missing here."""
    if not shutil.which(via):
        raise InputError(f"`--via {via}` requires {via}, which was not found")
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(hosts))) as pool:
        done = pool.map(lambda host: _output_of(_command_for(host, command, via, limit_s), limit_s), hosts)
        return dict(zip(hosts, done, strict=True))


def _command_for(host: str, command: Sequence[str], via: Via, limit_s: float) -> list[str]:
    if via == "ssh":
        options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "LogLevel=ERROR")
        return ["ssh", *options, host, shlex.join(command)]
    # --overlap: within an allocation, share the cores of the job's own steps.
    minutes = max(1, round(limit_s / 60))
    return ["srun", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--overlap", f"--time={minutes}", *command]


def _output_of(command: Sequence[str], limit_s: float) -> HostOutput:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        data, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return HostOutput(problem=f"it did not answer within {limit_s:g} s")
    finally:
        _end(process)
    if process.returncode:
        problem = f"{command[0]} ended with code {process.returncode}: {_reason(errors)[:300]}"
        return HostOutput(problem=problem)
    return HostOutput(data=data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group, unless the process has ended."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reason(errors: bytes) -> str:
    """Return the line of standard error that names the error, or else the last line."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("error: ")]
    if named:
        return named[0]
    return lines[-1] if lines else "it printed nothing"
