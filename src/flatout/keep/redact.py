"""Replace host names in texts with numbers, on request; `flatout.secrets` masks the secrets."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping

from flatout.errors import UsageError
from flatout.launch.hosts import host_names


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that replaces the names of this host and of hosts named by Slurm or torchrun with numbers."""
    numbers: dict[str, str] = {}
    num_hosts = 0
    for names in _hosts(environment):
        new_names = [name for name in names if name not in numbers]
        num_hosts += bool(new_names)
        numbers |= dict.fromkeys(new_names, f"host-{num_hosts}")
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
    hosts += [[name] for name in _hosts_of_slurm(environment.get("SLURM_JOB_NODELIST", ""))]
    hosts.append([environment.get("MASTER_ADDR", ""), environment.get("SLURM_SUBMIT_HOST", "")])
    return [kept for names in hosts if (kept := [name for name in names if name and name != "localhost"])]


def _hosts_of_slurm(nodes: str) -> list[str]:
    """Return the names in a host list, `gpu[01-03,7],login`; none if it is not one of Slurm's, or names too many."""
    try:
        return host_names(nodes)
    except UsageError:
        return []
