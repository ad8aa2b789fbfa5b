"""One command on each of several hosts, through srun or ssh, all at the same time: what it printed, or why nothing.

In: hosts, a command, how to reach them. Out: by host, its standard output. Nothing is asked for (no password, no key),
nothing is copied there, and a host that does not answer holds the others up no longer than its limit.
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
_HOST = re.compile(r"[A-Za-z0-9_][\w.@:-]*")  # a leading dash would be an option


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """What a host's command wrote to standard output; None with the reason where it failed."""

    data: bytes | None = None
    problem: str = ""


def host_names(text: str) -> list[str]:
    """`a,b,c`, and where Slurm's scontrol is there, `node[1-8]` too. UsageError for what no host can be called."""
    names = [name for name in re.split(r",(?![^\[]*\])", text) if name]
    found: list[str] = []
    for name in names:
        if "[" in name:
            found += _expanded(name)
        else:
            found.append(name)
    bad = [name for name in found if not _HOST.fullmatch(name)]
    if bad or not found:
        raise UsageError(f"no host can be called `{(bad or [text])[0]}`", hint="flatout doctor --hosts node1,node2")
    return list(dict.fromkeys(found))


def _expanded(pattern: str) -> list[str]:
    if not shutil.which("scontrol"):
        raise UsageError(
            f"`{pattern}` needs Slurm's scontrol, which was not found", hint="name them: flatout doctor --hosts a,b,c"
        )
    done = subprocess.run(
        ["scontrol", "show", "hostnames", pattern], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        raise UsageError(
            f"scontrol could not tell the hosts of `{pattern}`: {said[-1][:200]}",
            hint="name them: flatout doctor --hosts a,b,c",
        )
    return done.stdout.split()


def way_to(hosts: Sequence[str], environment: Mapping[str, str] = os.environ) -> Via:
    """`srun` within a Slurm job, or where Slurm knows all of the hosts; else `ssh`."""
    if not shutil.which("srun"):
        return "ssh"
    if "SLURM_JOB_ID" in environment:
        return "srun"
    if not shutil.which("scontrol"):
        return "ssh"
    try:
        known = [
            subprocess.run(["scontrol", "show", "node", host], capture_output=True, check=False, timeout=20).returncode
            for host in hosts
        ]
    except subprocess.TimeoutExpired:
        return "ssh"
    return "ssh" if any(known) else "srun"


def on_hosts(hosts: Sequence[str], command: Sequence[str], *, via: Via, limit_s: float) -> dict[str, Printed]:
    """Runs `command` once on each. InputError where srun or ssh is not here."""
    if not shutil.which(via):
        raise InputError(f"`--via {via}` needs {via}, which was not found")
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(hosts))) as pool:
        done = pool.map(lambda host: _printed(_words(host, command, via, limit_s), limit_s), hosts)
        return dict(zip(hosts, done, strict=True))


def _words(host: str, command: Sequence[str], via: Via, limit_s: float) -> list[str]:
    if via == "ssh":
        options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "LogLevel=ERROR")
        return ["ssh", *options, host, shlex.join(command)]
    # --overlap: within an allocation, beside the job's own steps; it needs no cores of its own.
    minutes = max(1, round(limit_s / 60))
    return ["srun", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--overlap", f"--time={minutes}", *command]


def _printed(words: Sequence[str], limit_s: float) -> Printed:
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        data, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Printed(problem=f"it did not answer within {limit_s:g} s")
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "it said nothing")
        return Printed(problem=f"{words[0]} ended with code {process.returncode}: {why.strip()[:300]}")
    return Printed(data=data)
