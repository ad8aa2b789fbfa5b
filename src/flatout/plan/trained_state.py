"""The bytes that a training keeps per parameter of the model: weights, gradients and the optimizer's states.

Each function returns a pair: for the dense parameters, and for the routed experts. A frozen parameter has a weight and
nothing else; with adapters (LoRA), all of the model is frozen, and the adapters come in addition.
"""

from __future__ import annotations

import numpy as np

from flatout.plan.inputs import Column, CostModelInputs

Pair = tuple[Column, Column]


def frozen(inputs: CostModelInputs) -> Pair:
    """Return the share of the parameters that is frozen."""
    return (
        np.where(inputs.adapters > 0, 1.0, 1.0 - inputs.trained),
        np.where(inputs.adapters > 0, 1.0, 1.0 - inputs.trained_experts),
    )


def weight_bytes(inputs: CostModelInputs) -> Pair:
    """Return the bytes of the weights per parameter of the model."""
    frozen_dense, frozen_experts = frozen(inputs)
    frozen_bytes = np.where(inputs.frozen_bytes > 0, inputs.frozen_bytes, inputs.element_bytes)
    return (
        inputs.trained * inputs.element_bytes + frozen_dense * frozen_bytes,
        inputs.trained_experts * inputs.element_bytes + frozen_experts * frozen_bytes,
    )


def trained_weight_bytes(inputs: CostModelInputs) -> Pair:
    """Return the bytes of the weights that are trained per parameter of the model."""
    return inputs.trained * inputs.element_bytes, inputs.trained_experts * inputs.element_bytes


def gradient_bytes(inputs: CostModelInputs, bytes_per_gradient: Column) -> Pair:
    """Return the bytes of the gradients per parameter of the model."""
    return inputs.trained * bytes_per_gradient, inputs.trained_experts * bytes_per_gradient


def optimizer_bytes(inputs: CostModelInputs) -> Pair:
    """Return the bytes of the master weights and the optimizer's states per parameter of the model."""
    num_bytes = inputs.optimizer_bytes * inputs.optimizer_share
    return inputs.trained * num_bytes, inputs.trained_experts * num_bytes
