"""The memory of the rank that uses the most, broken down into parts that sum to it.

A layer's activations, in bytes per token, are counted with the terms of Korthikanti et al. (arXiv 2205.05198, table 2),
generalized to any shape. Such a sum is 20-40 % below what the driver reports, so the allocator's overhead and the
memory outside the allocator (the CUDA context, NCCL's buffers) are constants fitted to published peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.plan import sizes, trained_state
from flatout.plan.inputs import Column, CostModelInputs

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "overhead")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """Constants of the memory model, fitted to published peaks independently of the time model's constants."""

    context_bytes: float = 1.5e9  # CUDA context, including loaded kernels
    group_bytes: float = 0.6e9  # NCCL's buffers per kind of group that a rank belongs to
    allocator: float = 1.1  # reserved memory relative to allocated memory
    activations: float = 1.1  # held relative to counted activations: workspaces, and copies that frameworks keep


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes used by the rank that uses the most, as columns of equal length."""

    total: Column
    parts: dict[str, Column]


def memory(inputs: CostModelInputs, constants: MemoryConstants) -> MemoryEstimate:
    """Predict the memory of every row of the inputs."""
    dense, expert = sizes.dense_parameters(inputs), sizes.expert_parameters(inputs)
    shards, expert_shards = sizes.shards(inputs)

    def held(bytes_per_parameter: tuple[Column, Column], from_stage: float) -> Column:
        is_sharded = inputs.zero >= from_stage
        of_dense, of_experts = bytes_per_parameter
        held_dense = of_dense * dense / np.where(is_sharded, shards, 1.0)
        return held_dense + of_experts * expert / np.where(is_sharded, expert_shards, 1.0)

    layers_of_stage = np.maximum(sizes.layers_of_largest_stage(inputs), 1.0)
    two_layers = 2.0 * (dense + expert) / layers_of_stage
    two_trained = 2.0 * (inputs.trained * dense + inputs.trained_experts * expert) / layers_of_stage
    gathered = np.where(inputs.zero >= 3, inputs.element_bytes, 0.0)
    weights = held(trained_state.weight_bytes(inputs), 3) + gathered * two_layers
    gradients = held(trained_state.gradient_bytes(inputs, inputs.held_gradient_bytes), 2) + gathered * two_trained
    optimizer = held(trained_state.optimizer_bytes(inputs), 1) * (1.0 - np.asarray(inputs.offload))

    tokens = inputs.micro_batch * inputs.seq / inputs.cp
    each, always = (part * tokens * constants.activations for part in _activation_bytes_per_token(inputs))
    on_first, on_last = micro_batches_held(inputs)
    activations = each * on_first + always
    last = np.where(inputs.pp > 1, each * on_last + always, activations) + logits_bytes(inputs)
    logits = np.maximum(last - activations, 0.0)
    subtotal = weights + gradients + optimizer + activations + logits
    groups = sum(
        (np.asarray(size) > 1).astype(np.float64) for size in (inputs.tp, inputs.pp, inputs.cp, inputs.ep, inputs.dp)
    )
    outside = constants.context_bytes + constants.group_bytes * groups
    overhead = subtotal * (constants.allocator - 1.0) + outside
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
        "overhead": overhead,
    }
    return MemoryEstimate(subtotal + overhead, parts)


def logits_bytes(inputs: CostModelInputs) -> Column:
    """Return the bytes of the last stage's logits.

    Each micro-batch held needs them in 16 bits and in fp32; one gradient in 16 bits is added.
    """
    held = np.where(inputs.gpipe > 0, inputs.num_micro, 1.0)
    return inputs.micro_batch * inputs.seq / inputs.cp * inputs.vocab / inputs.tp * (6.0 * held + 2.0)


def micro_batches_held(inputs: CostModelInputs) -> tuple[Column, Column]:
    """Return the maximum number of micro-batches that the first and the last stage hold.

    With m micro-batches on p stages, these are p and 1 for 1F1B, and m and m for GPipe. With interleaving into v
    chunks, the first stage holds p + (p - 1) / v, and the last stage ((v - 1) p + 1) / v (Narayanan et al.,
    arXiv 2104.04473, 2.2).
    """
    first = np.minimum(inputs.pp + np.where(inputs.vpp > 1, (inputs.pp - 1.0) / inputs.vpp, 0.0), inputs.num_micro)
    last = ((inputs.vpp - 1.0) * inputs.pp + 1.0) / inputs.vpp
    return np.where(inputs.gpipe > 0, inputs.num_micro, first), np.where(inputs.gpipe > 0, inputs.num_micro, last)


def _activation_bytes_per_token(inputs: CostModelInputs) -> tuple[Column, Column]:
    """Return the largest stage's activation bytes per token: those per micro-batch held, and those needed only once.

    Full recomputation keeps each layer's input, and the activations of one complete layer.
    """
    layers = sizes.layers_of_largest_stage(inputs)
    whole = _layer_bytes_per_token(inputs)
    whole_less = whole - np.where(
        inputs.fused > 0, inputs.selective_share * 1.2 * whole, _score_bytes_per_token(inputs)
    )
    each = np.where(inputs.selective > 0, whole_less, whole)
    boundary = 2.0 * inputs.hidden / np.where(inputs.sp > 0, inputs.tp, 1.0)
    return layers * np.where(inputs.full > 0, boundary, each), inputs.full * whole + boundary * 2.0


def _score_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of unfused attention's scores: 5 a s for softmax's output and dropout's mask and output."""
    return np.where(inputs.fused > 0, 0.0, 5.0 * inputs.heads * inputs.attended / inputs.tp)


def _layer_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of one layer's activations per token.

    For all tokens, or with sequence parallelism for this rank's share: 10 h for the inputs of two norms and two
    matmuls, and two dropout masks. Split by TP: queries, keys and values, attention's output, and the feed-forward
    network's inner widths (the outputs of each up projection and of the activation). Experts also keep a copy of each
    token, in and out.
    """
    shared = 10.0 * inputs.hidden / np.where(inputs.sp > 0, inputs.tp, 1.0)
    share_moe = inputs.moe_layers / inputs.layers
    inner_width = (1.0 - share_moe) * inputs.ffn + share_moe * (inputs.shared_ffn + inputs.topk * inputs.expert_ffn)
    attention = 2.0 * (inputs.heads * inputs.head_dim + inputs.kv_width + inputs.out_width)
    inner = (attention + 2.0 * inputs.ffn_matrices * inner_width) / inputs.tp
    routed = share_moe * 4.0 * inputs.topk * inputs.hidden / inputs.tp
    return shared + inner + routed + _score_bytes_per_token(inputs)
