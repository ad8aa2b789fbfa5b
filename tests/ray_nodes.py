"""Start Ray clusters for tests so that they also start on busy cores.

A raylet waits 15 seconds for each of its agents to write its port to a file, and then ends: on busy cores, the agent
still imports Ray. No variable changes that (ray-project/ray#65983), and given ports do not either: that of the
dashboard's agent is waited for all the same. So a cluster that did not start is started again. What variables do limit
is raised.
"""

from __future__ import annotations

import os
from typing import Any

ATTEMPTS = 3
PATIENCE = {"RAY_agent_register_timeout_ms": "300000", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}


def patient_ray() -> None:
    """Raise the limits that variables set, before Ray is imported. Those that are set already stay."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)


def started_cluster(**head_node_args: Any) -> Any:
    """Return a `ray.cluster_utils.Cluster` whose head runs."""
    from ray.cluster_utils import Cluster

    for _ in range(ATTEMPTS - 1):
        try:
            return Cluster(initialize_head=True, head_node_args=head_node_args)
        except Exception as error:  # noqa: BLE001 - Ray raises no narrower one
            print(f"Ray did not start: {error}")
    return Cluster(initialize_head=True, head_node_args=head_node_args)
