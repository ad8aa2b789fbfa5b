"""The memory of the fullest rank, in parts that add up to it.

Activations of a layer, in bytes a token: the terms of Korthikanti et al. (arXiv 2205.05198, table 2), written for any
shape. A textbook sum is 20-40 % short of what the driver counts, so the allocator's loss and what lives outside it (the
CUDA context, NCCL's buffers) are constants fitted to published peaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.plan import sizes
from flatout.plan.case import Case, Column

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "overhead")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """Fitted to the published peaks, beside the kernels' constants."""

    context_bytes: float = 1.5e9  # CUDA's, with loaded kernels
    group_bytes: float = 0.6e9  # NCCL's buffers for each kind of group that a rank is in
    allocator: float = 1.1  # reserved over allocated
    activations: float = 1.1  # of the counted ones: workspaces, and copies that frameworks keep


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the fullest rank; columns of one length."""

    total: Column
    parts: dict[str, Column]


def memory(case: Case, constants: MemoryConstants) -> Memory:
    """Predict every row of the case."""
    dense, expert = sizes.dense_parameters(case), sizes.expert_parameters(case)
    shards, expert_shards = sizes.shards(case)

    def held(num_bytes: Column, from_stage: float) -> Column:
        is_sharded = case.zero >= from_stage
        return num_bytes * (
            dense / np.where(is_sharded, shards, 1.0) + expert / np.where(is_sharded, expert_shards, 1.0)
        )

    two_layers = 2.0 * (dense + expert) / np.maximum(sizes.layers_of_fullest_stage(case), 1.0)
    weights = held(case.element_bytes, 3) + np.where(case.zero >= 3, case.element_bytes * two_layers, 0.0)
    gradients = held(case.held_gradient_bytes, 2) + np.where(case.zero >= 3, case.element_bytes * two_layers, 0.0)
    optimizer = held(12.0, 1) * (
        1.0 - np.asarray(case.offload)
    )  # fp32 master weight and two moments (Rajbhandari et al., arXiv 1910.02054: K = 12)

    tokens = case.micro_batch * case.seq / case.cp
    each, always = (part * tokens * constants.activations for part in _activation_bytes_per_token(case))
    on_first, on_last = micro_batches_held(case)
    activations = each * on_first + always
    last = np.where(case.pp > 1, each * on_last + always, activations) + logits_bytes(case)
    logits = np.maximum(last - activations, 0.0)
    subtotal = weights + gradients + optimizer + activations + logits
    groups = sum((np.asarray(size) > 1).astype(np.float64) for size in (case.tp, case.pp, case.cp, case.ep, case.dp))
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
    return Memory(subtotal + overhead, parts)


def logits_bytes(case: Case) -> Column:
    """Of the last stage: for each micro-batch that it holds 16 bits and fp32, and one gradient in 16 bits."""
    held = np.where(case.gpipe > 0, case.num_micro, 1.0)
    return case.micro_batch * case.seq / case.cp * case.vocab / case.tp * (6.0 * held + 2.0)


def micro_batches_held(case: Case) -> tuple[Column, Column]:
    """On the first stage and on the last one, at most: of m, p and 1 (1F1B); all m (GPipe); with interleaving into v
    chunks p + (p - 1) / v and those of all chunks but one (Narayanan et al., arXiv 2104.04473, 2.2).
    """
    first = np.minimum(case.pp + np.where(case.vpp > 1, (case.pp - 1.0) / case.vpp, 0.0), case.num_micro)
    last = ((case.vpp - 1.0) * case.pp + 1.0) / case.vpp
    return np.where(case.gpipe > 0, case.num_micro, first), np.where(case.gpipe > 0, case.num_micro, last)


def _activation_bytes_per_token(case: Case) -> tuple[Column, Column]:
    """Of the fullest stage: for each micro-batch that it holds, and once.

    Full recompute keeps each layer's input, and one layer in full.
    """
    layers = sizes.layers_of_fullest_stage(case)
    whole = _layer_bytes_per_token(case)
    whole_less = whole - np.where(case.fused > 0, case.selective_share * 1.2 * whole, _score_bytes_per_token(case))
    each = np.where(case.selective > 0, whole_less, whole)
    boundary = 2.0 * case.hidden / np.where(case.sp > 0, case.tp, 1.0)
    return layers * np.where(case.full > 0, boundary, each), case.full * whole + boundary * 2.0


def _score_bytes_per_token(case: Case) -> Column:
    """Unfused attention's scores: softmax's output, dropout's mask and output: 5 a s bytes."""
    return np.where(case.fused > 0, 0.0, 5.0 * case.heads * case.attended / case.tp)


def _layer_bytes_per_token(case: Case) -> Column:
    """One layer's activations.

    On all tokens, or with sequence parallelism this rank's share: two norms' inputs, two products' inputs and two
    dropout masks, 10 h. Split by TP: queries, keys and values, attention's output, and the feed-forward network's
    inner widths (each of the up products' outputs, and the activation's). Experts keep each token's copy in and out
    as well.
    """
    shared = 10.0 * case.hidden / np.where(case.sp > 0, case.tp, 1.0)
    share_moe = case.moe_layers / case.layers
    inner_width = (1.0 - share_moe) * case.ffn + share_moe * (case.shared_ffn + case.topk * case.expert_ffn)
    attention = 2.0 * (case.heads * case.head_dim + case.kv_width + case.out_width)
    inner = (attention + 2.0 * case.ffn_matrices * inner_width) / case.tp
    routed = share_moe * 4.0 * case.topk * case.hidden / case.tp
    return shared + inner + routed + _score_bytes_per_token(case)
