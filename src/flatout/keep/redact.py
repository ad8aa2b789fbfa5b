"""Replace host names in texts with numbers, on request; `flatout.secrets` masks the secrets."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces the names of this host and of hosts named by Slurm or torchrun with numbers."""
    numbers: dict[str, str] = {}
    for names in _hosts(environment):
        label = f"host-{len(set(numbers.values())) + 1}"
        for name in names:
            numbers.setdefault(name, label)
    if not numbers:
        return str
    longest_first = sorted(numbers, key=len, reverse=True)
    pattern = re.compile(r"(?<![\w.])(?:%s)(?![\w])" % "|".join(map(re.escape, longest_first)))  # noqa: UP031
    return lambda text: pattern.sub(lambda found: numbers[found[0]], text)


def _hosts(environment: Mapping[str, str]) -> list[list[str]]:
    own = [
        os.uname().nodename,
        socket.gethostname(),
        environment.get("SLURMD_NODENAME", ""),
        environment.get("HOSTNAME", ""),
    ]
    hosts = [[*own, *(name.partition(".")[0] for name in own)]]
    hosts += [[name] for name in _expanded(environment.get("SLURM_JOB_NODELIST", ""))]
    hosts.append([environment.get("MASTER_ADDR", ""), environment.get("SLURM_SUBMIT_HOST", "")])
    return [kept for names in hosts if (kept := [name for name in names if name and name != "localhost"])]


def _expanded(nodes: str) -> list[str]:
    """Expand a host list: `gpu[01-03,7],login` -> each name; leading zeros are kept."""
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", nodes):
        match = re.fullmatch(r"([^\[]+)\[([^\]]*)\]", part)
        if match is None:
            found.append(part)
            continue
        for item in match[2].split(","):
            first, _, last = item.partition("-")
            if first.isdigit() and (last or first).isdigit():
                found += [f"{match[1]}{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)]
    return found
