"""The training's part of the cost model's inputs: the share of the parameters that is trained, and the optimizer."""

from __future__ import annotations

from flatout.plan.optimizers import OPTIMIZERS
from flatout.records.plan import Training, Workload


def training_columns(workload: Workload, training: Training) -> dict[str, float]:
    """Return the training's part of the cost model's inputs."""
    optimizer = OPTIMIZERS[training.optimizer]
    return {
        "trained": 1.0,
        "trained_experts": 1.0,
        "adapters": 0.0,
        "frozen_bytes": 0.0,
        "optimizer_bytes": optimizer.state_bytes,
        "update_bytes": optimizer.moved_bytes,
        "update_operations": 0.0,
    }
