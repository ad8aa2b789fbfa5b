"""The bytes that a rank sends in a step, by dimension of the layout.

In: the cost model's inputs of one layout. Out: bytes to one neighbour, by the rules of `plan/step_time.py`: an
all-reduce of S bytes over n ranks sends 2 (n-1)/n S, an all-gather or reduce-scatter (n-1)/n S; a pipeline sends each
micro-batch's activations, and their gradients back; each rank of an all-to-all sends the same to every other one, once
for each expert, as NCCL does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatout.plan import sizes
from flatout.plan.inputs import CostModelInputs

DIMENSIONS = ("tensor", "context", "data", "data_shards", "data_copies", "expert_data", "expert", "pipeline")
_KEYS_AND_VALUES = 3.0  # a ring of context parallelism: once forward, and twice backward


def bytes_to_neighbour(inputs: CostModelInputs) -> dict[str, float]:
    """Return the bytes that a rank sends to one neighbour in a step, by dimension; only those with more than a rank."""
    layers = sizes.layers_of_largest_stage(inputs)
    tokens = inputs.micro_batch * inputs.seq / inputs.cp
    passes = layers * inputs.num_micro
    activations = 2.0 * tokens * inputs.hidden
    keys_and_values = 2.0 * tokens * inputs.cp * inputs.kv_width / inputs.tp
    tokens_to_experts = activations / inputs.tp * inputs.topk
    exchanges = 2.0 * sizes.moe_share(inputs) * (2.0 + inputs.full)
    sent = activations / np.where(inputs.scatters > 0, inputs.tp, 1.0)
    volumes = {
        "tensor": passes * (4.0 + 2.0 * inputs.full) * _all_reduced(activations, inputs.tp),
        "context": passes * _KEYS_AND_VALUES * _gathered(keys_and_values, inputs.cp),
        "expert": passes * exchanges * tokens_to_experts / np.maximum(inputs.ep, 1.0),
        "pipeline": inputs.num_micro * inputs.vpp * sent,
        **_gradients(inputs),
    }
    sizes_of_groups = group_sizes(inputs)
    return {name: _scalar(volumes[name]) for name in DIMENSIONS if sizes_of_groups.get(name, 1.0) > 1.0}


def group_sizes(inputs: CostModelInputs) -> Mapping[str, float]:
    """Return the number of ranks in a group of each dimension that the layout uses."""
    replicas, expert_replicas = inputs.dp * inputs.cp, sizes.expert_replicas(inputs)
    has_experts = _scalar(inputs.moe_layers) > 0
    shards = _scalar(sizes.shards(inputs)[0])
    is_hybrid = _scalar(inputs.shard) > 0 and shards < _scalar(replicas)
    return {
        "tensor": _scalar(inputs.tp),
        "context": _scalar(inputs.cp),
        "data": 1.0 if is_hybrid else _scalar(replicas),
        "data_shards": shards if is_hybrid else 1.0,
        "data_copies": _scalar(replicas) / shards if is_hybrid else 1.0,
        "expert": _scalar(inputs.ep) if has_experts else 1.0,
        "expert_data": _scalar(expert_replicas) if has_experts else 1.0,
        "pipeline": _scalar(inputs.pp),
    }


def _gradients(inputs: CostModelInputs) -> dict[str, Any]:
    """Return what data parallelism sends: gradients, and with ZeRO the gathered weights."""
    replicas, expert_replicas = inputs.dp * inputs.cp, sizes.expert_replicas(inputs)
    shards, expert_shards = sizes.shards(inputs)
    dense, expert = sizes.dense_parameters(inputs), sizes.expert_parameters(inputs)
    dense_gradients = inputs.gradient_bytes * inputs.trained * dense
    expert_gradients = inputs.gradient_bytes * inputs.trained_experts * expert
    of_dense = _with_sharding(inputs, dense, inputs.trained * dense, dense_gradients, shards)
    of_experts = _with_sharding(inputs, expert, inputs.trained_experts * expert, expert_gradients, expert_shards)
    return {
        "data": np.where(inputs.zero == 0, _all_reduced(dense_gradients, replicas), of_dense),
        "data_shards": of_dense,
        "data_copies": _all_reduced(dense_gradients / shards, replicas / shards),
        "expert_data": np.where(inputs.zero == 0, _all_reduced(expert_gradients, expert_replicas), of_experts),
    }


def _with_sharding(inputs: CostModelInputs, weights: Any, updated: Any, gradients: Any, shards: Any) -> Any:
    """Return the bytes of reduce-scatters and all-gathers: once per step, or with ZeRO 3 in each micro-batch."""
    once = _gathered(gradients, shards) + _gathered(2.0 * updated, shards)
    gathers = 2.0 + inputs.full * inputs.gathers_again
    per_micro_batch = _gathered(gradients, shards) + gathers * _gathered(2.0 * weights, shards)
    return np.where(inputs.zero >= 3, inputs.num_micro * per_micro_batch, once)


def _all_reduced(num_bytes: Any, size: Any) -> Any:
    return 2.0 * num_bytes * (size - 1.0) / size


def _gathered(num_bytes: Any, size: Any) -> Any:
    return num_bytes * (size - 1.0) / size


def _scalar(column: Any) -> float:
    return float(np.ravel(column)[0])
