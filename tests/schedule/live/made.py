"""Small clusters made by hand."""

from __future__ import annotations

from typing import Any

from flatout.schedule.live.view import ClusterView, JobView, NodeView

NOW = 1_000_000.0


def node(name: str, gpus: int = 8, **more: Any) -> NodeView:
    return NodeView(name=name, num_gpus=gpus, **{"partitions": ("low",), **more})


def running(job_id: str, on: dict[str, int], *, ran_s: float = 100.0, **more: Any) -> JobView:
    values: dict[str, Any] = {
        "state": "running",
        "user": "ann",
        "partition": "low",
        "submit_unix_s": NOW - ran_s,
        "start_unix_s": NOW - ran_s,
        "gpus_by_node": on,
        "num_gpus": sum(on.values()),
        "num_nodes": len(on),
        "may_requeue": True,
    }
    return JobView(id=job_id, **{**values, **more})


def pending(job_id: str, *, nodes: int = 1, gpus: int = 8, **more: Any) -> JobView:
    values: dict[str, Any] = {
        "state": "pending",
        "user": "bob",
        "partition": "low",
        "submit_unix_s": NOW - 50 + int(job_id),
        "priority": 1000 - int(job_id),
        "gpus_per_node": gpus,
        "num_gpus": gpus * nodes,
        "num_nodes": nodes,
        "reason": "Resources",
    }
    return JobView(id=job_id, **{**values, **more})


def cluster(*things: JobView | NodeView, **more: Any) -> ClusterView:
    return ClusterView(
        now_unix_s=NOW,
        jobs=tuple(each for each in things if isinstance(each, JobView)),
        nodes=tuple(each for each in things if isinstance(each, NodeView)),
        **more,
    )
