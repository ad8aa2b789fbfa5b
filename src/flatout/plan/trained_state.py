"""What a training keeps for its parameters: the share of them that is trained, and the bytes of each, by optimizer.

`columns` returns this part of the cost model's inputs. The other functions return bytes per parameter of the model, as
a pair: for the dense parameters, and for the routed experts. A frozen parameter has a weight and nothing else; with
adapters (LoRA), all of the model is frozen, and the adapters come in addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.plan.optimizers import OPTIMIZERS
from flatout.records.plan import Training, Workload

if TYPE_CHECKING:
    from flatout.plan.inputs import CostModelInputs

Pair = tuple[Any, Any]


def columns(workload: Workload, training: Training) -> dict[str, float]:
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


def frozen(inputs: CostModelInputs) -> Pair:
    """Return the share of the parameters that is frozen."""
    return (
        np.where(inputs.adapters > 0, 1.0, 1.0 - inputs.trained),
        np.where(inputs.adapters > 0, 1.0, 1.0 - inputs.trained_experts),
    )


def weight_bytes(inputs: CostModelInputs) -> Pair:
    """Return the bytes of the weights per parameter of the model."""
    frozen_dense, frozen_experts = frozen(inputs)
    return (
        inputs.trained * inputs.element_bytes + frozen_dense * inputs.frozen_bytes,
        inputs.trained_experts * inputs.element_bytes + frozen_experts * inputs.frozen_bytes,
    )


def gradient_bytes(inputs: CostModelInputs, bytes_per_gradient: Any) -> Pair:
    """Return the bytes of the gradients per parameter of the model."""
    return inputs.trained * bytes_per_gradient, inputs.trained_experts * bytes_per_gradient


def optimizer_bytes(inputs: CostModelInputs) -> Pair:
    """Return the bytes of the master weights and the optimizer's states per parameter of the model."""
    return inputs.trained * inputs.optimizer_bytes, inputs.trained_experts * inputs.optimizer_bytes
