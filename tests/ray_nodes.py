"""Start Ray nodes for tests so that they also start on busy cores.

A raylet that is given no ports of its agents waits 15 seconds for each to write its port to a file, and then ends; no
variable changes that (ray-project/ray#65983). With ports it does not wait. The other limits are variables, of which one
is read when Ray is imported, so `patient_ray` is called before `import ray`.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
PATIENCE = {
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
}


def patient_ray() -> None:
    """Raise the limits that variables set. Those that are set already stay."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)


def agent_ports() -> dict[str, int]:
    """Return free ports for the agents of a node: arguments of a node of `ray.cluster_utils.Cluster`."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in _PORTS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(_PORTS, sockets, strict=True)}
