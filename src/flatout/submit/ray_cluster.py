"""Find the Ray cluster of this user on this machine, and trust none of another user.

`ray start --head` writes the cluster's address to a file below the shared temporary folder, where any user can put a
file of that name, and its dashboard listens on a port that any user can take first. So the file, and the process that
listens on the port, must belong to this user. In: the environment, and /proc. Out: an address, or None.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_DASHBOARD_PORT = 8265
RAY_DASHBOARD = f"http://127.0.0.1:{_DASHBOARD_PORT}"
_SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAX_ADDRESS_BYTES = 300
_LISTENS = "0A"  # a state in these tables


def cluster_file(environment: Mapping[str, str]) -> Path:
    """Return where Ray keeps the address of the cluster that was started last."""
    temporary = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    return Path(temporary, "ray", "ray_current_cluster")


def own_cluster(environment: Mapping[str, str]) -> str | None:
    """Return the address of this user's cluster, as Ray wrote it; None without one."""
    path = cluster_file(environment)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
            return None
        return os.read(descriptor, _MAX_ADDRESS_BYTES).decode("utf-8", "replace").strip() or None
    finally:
        os.close(descriptor)


def own_dashboard(environment: Mapping[str, str]) -> str | None:
    """Return the address of the dashboard of this user's cluster; None without one, or if another user has its port."""
    if own_cluster(environment) is None:
        return None
    return None if is_dashboard_of_another() else RAY_DASHBOARD


def is_dashboard_of_another() -> bool:
    """Whether a process of another user listens on the dashboard's port of this machine."""
    return not _owners_of_port(_DASHBOARD_PORT) <= {os.getuid()}


def _owners_of_port(port: int) -> set[int]:
    """Return the users whose processes listen on a port of this machine."""
    owners: set[int] = set()
    for table in _SOCKET_TABLES:
        try:
            rows = table.read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            is_listener = len(fields) > 7 and fields[3] == _LISTENS
            if is_listener and int(fields[1].rpartition(":")[2], 16) == port:
                owners.add(int(fields[7]))
    return owners
