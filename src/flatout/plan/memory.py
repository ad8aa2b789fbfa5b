"""The memory of the rank that uses the most, broken down into parts that sum to it.

A layer's activations, in bytes per token, are counted with the terms of Korthikanti et al. (arXiv 2205.05198, table 2),
generalized to any shape and to what today's kernels keep. The allocator's overhead and the memory outside the allocator
(the CUDA context, NCCL's buffers) are constants, fitted to published peaks and to runs that are known to have fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.plan import sizes, trained_state
from flatout.plan.inputs import Column, CostModelInputs

LINK_OF_A100 = 300e9
FEW_NORMS = 16.0  # up to as many hidden widths are norms, more are positions or towers of the first stage
LIVE_PARAMETERS = 1e9  # DeepSpeed's default of stage3_max_live_parameters
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "overhead")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """Constants of the memory model, independent of the time model's.

    The defaults are what `memory_fit.py` makes of the published runs.
    """

    context_bytes: float = 1.512e9  # CUDA context, including loaded kernels
    group_bytes: float = 0.7029e9  # NCCL's buffers per kind of group that a rank belongs to, on an A100
    allocator: float = 1.039  # reserved memory relative to allocated memory
    activations: float = 0.9784  # held relative to counted activations: workspaces, and copies that frameworks keep
    unfused: float = 1.091  # the same in addition, in software from before fused attention
    returned: float = 0.03114  # share of a peak that the allocator gives back before it fails


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes used by the rank that uses the most, as columns of equal length."""

    total: Column
    parts: dict[str, Column]


def memory(inputs: CostModelInputs, constants: MemoryConstants) -> MemoryEstimate:
    """Predict the memory of every row of the inputs."""
    dense, expert = sizes.dense_parameters(inputs), sizes.expert_parameters(inputs)
    states = _states(inputs, dense, expert)

    tokens = inputs.micro_batch * inputs.seq / inputs.cp
    workspaces = constants.activations * np.where(inputs.fused > 0, 1.0, constants.unfused)
    each, repeated, always = (part * tokens * workspaces for part in _activation_bytes_per_token(inputs))
    on_first, on_last = micro_batches_held(inputs, 0.0), micro_batches_held(inputs, inputs.pp - 1.0)
    in_towers = _tower_bytes(inputs) * workspaces * on_first * inputs.is_first_stage
    in_first, in_last = each * inputs.stage_kept * on_first, each * inputs.last_stage_kept * on_last
    fewer_bytes, kept_share = _last_stage(inputs, states, dense, expert)
    in_last = in_last * kept_share
    activations = in_first + repeated + always + in_towers
    # The logits' gradient is freed before the last layer is recomputed: both are never held at once.
    of_loss, of_others = logits_bytes(inputs)
    held_at_loss = np.where(inputs.pp > 1, in_last, in_first + in_towers) + always + of_others
    more_at_loss = held_at_loss + np.maximum(repeated, of_loss) - activations - fewer_bytes
    logits = np.maximum(more_at_loss, 0.0) * inputs.is_last_stage
    subtotal = states.total + activations + logits
    groups = sum(
        (np.asarray(size) > 1).astype(np.float64) for size in (inputs.tp, inputs.pp, inputs.cp, inputs.ep, inputs.dp)
    )
    # NCCL opens channels in proportion to the links, and keeps buffers for each.
    channels = np.clip(inputs.link / LINK_OF_A100, 0.5, 1.5)
    outside = constants.context_bytes + constants.group_bytes * channels * groups + inputs.buffer_bytes
    overhead = subtotal * (constants.allocator - 1.0) + outside
    parts = {
        "weights": states.weights,
        "gradients": states.gradients,
        "optimizer": states.optimizer,
        "activations": activations,
        "logits": logits,
        "overhead": overhead,
    }
    return MemoryEstimate(subtotal + overhead, parts)


@dataclass(frozen=True, slots=True)
class _States:
    """Bytes of a stage's model states."""

    weights: Column
    gradients: Column
    optimizer: Column

    @property
    def total(self) -> Column:
        return self.weights + self.gradients + self.optimizer


def _states(inputs: CostModelInputs, dense: Column, expert: Column) -> _States:
    """Return the bytes of the states of these parameters of a rank, as ZeRO shards them."""
    shards, expert_shards = sizes.shards(inputs)

    def held(bytes_per_parameter: tuple[Column, Column], from_stage: float) -> Column:
        is_sharded = inputs.zero >= from_stage
        of_dense, of_experts = bytes_per_parameter
        held_dense = of_dense * dense / np.where(is_sharded, shards, 1.0)
        return held_dense + of_experts * expert / np.where(is_sharded, expert_shards, 1.0)

    is_zero3 = inputs.zero >= 3
    gathered = np.where(is_zero3, inputs.element_bytes * _gathered_parameters(inputs, dense, expert), 0.0)
    trained_share = (inputs.trained * dense + inputs.trained_experts * expert) / np.maximum(dense + expert, 1.0)
    weights = held(trained_state.weight_bytes(inputs), 3) + gathered
    # With ZeRO 3, the shard of the fp32 master weights is the only copy: a 16-bit one exists only while it is gathered.
    is_only_copy = is_zero3 & (np.asarray(inputs.optimizer_share) >= 1.0) & (np.asarray(inputs.has_master_weights) > 0)
    weights = weights - np.where(is_only_copy, held(trained_state.trained_weight_bytes(inputs), 3), 0.0)
    gradients = held(trained_state.gradient_bytes(inputs, inputs.held_gradient_bytes), 2) + gathered * trained_share
    optimizer = held(trained_state.optimizer_bytes(inputs), 1) * (1.0 - np.asarray(inputs.offload))
    return _States(weights, gradients, optimizer)


def _last_stage(inputs: CostModelInputs, states: _States, dense: Column, expert: Column) -> tuple[Column, Column]:
    """Return how many bytes of states the last stage holds less than the largest one, and its share of the activations.

    Both differ if the layers do not divide evenly, and with towers or positions, which are on the first stage. Inputs
    that describe one stage have no other.
    """
    is_either = (inputs.pp > 1) & (inputs.is_first_stage * inputs.is_last_stage > 0)
    share = sizes.layers_of_last_stage(inputs) / np.maximum(sizes.layers_of_largest_stage(inputs), 1.0)
    share = np.where(is_either & (share < 1.0), share, 1.0)
    is_at_first = inputs.outside_parameters > FEW_NORMS * inputs.hidden
    if np.all(share == 1.0) and not np.any(is_at_first):
        return 0.0, share
    outside_on_last = np.where(is_at_first, 0.0, inputs.outside_parameters)
    tables = sizes.table_parameters(inputs)
    own_dense = (dense - tables - inputs.outside_parameters) * share + tables + outside_on_last
    own = _states(inputs, own_dense, expert * share)
    return np.where(is_either, states.total - own.total, 0.0), share


def _gathered_parameters(inputs: CostModelInputs, dense: Column, expert: Column) -> Column:
    """Return the parameters that ZeRO 3 holds complete at its peak: two layers, the embedding and the logits' matrix.

    FSDP gathers the next layer while one computes; the tables belong to the root, which stays gathered.
    """
    tables = sizes.table_parameters(inputs)
    of_layers = dense + expert - tables
    complete = tables + 2.0 * of_layers / np.maximum(sizes.layers_of_largest_stage(inputs), 1.0)
    # DeepSpeed gathers single parameters and releases them beyond a number (stage3_max_live_parameters).
    return np.where(inputs.gathers > 1, np.minimum(complete, LIVE_PARAMETERS), complete)


def _tower_bytes(inputs: CostModelInputs) -> Column:
    """Return the activation bytes of one micro-batch's images or sound: none of a frozen tower's.

    A layer keeps 30 bytes for each position and element of its width: two norms, queries, keys, values, attention's
    output, and a network of four times the width; with full recomputation, its input.
    """
    bytes_per_element = np.where(inputs.full > 0, 2.0, 30.0)
    return bytes_per_element * inputs.tower_kept * inputs.micro_batch


def logits_bytes(inputs: CostModelInputs) -> tuple[Column, Column]:
    """Return the bytes of the last stage's logits: of the micro-batch at the loss, and of the others held.

    Each micro-batch held needs them in 16 bits and in fp32, and the one at the loss also what the loss derives from
    them.
    """
    num_logits = inputs.micro_batch * inputs.seq / inputs.cp * inputs.vocab / inputs.tp
    others_held = np.where(inputs.gpipe > 0, inputs.num_micro, 1.0) - 1.0
    return num_logits * inputs.logits_bytes, num_logits * others_held * np.minimum(inputs.logits_bytes, 6.0)


def micro_batches_held(inputs: CostModelInputs, stage: Column) -> Column:
    """Return the maximum number of micro-batches that a stage holds; stages are numbered from 0.

    With m micro-batches on p stages, stage s holds p - s for 1F1B, and m for GPipe. With interleaving into v chunks, it
    starts with 2 (p - s - 1) + (v - 1) p forwards, and then alternates (Narayanan et al., arXiv 2104.04473, 2.2): one
    chunk more than that, each the v-th part of a micro-batch. OneFlow reserves buffers for 2 p of them on all stages
    but the last, next to the one that computes.
    """
    later_stages = inputs.pp - 1.0 - stage
    chunks = 2.0 * later_stages + (inputs.vpp - 1.0) * inputs.pp + 1.0
    in_order = np.where(inputs.vpp > 1, chunks / inputs.vpp, later_stages + 1.0)
    held = np.minimum(in_order, inputs.num_micro)
    is_reserved = (inputs.reserves > 0) & (later_stages > 0) & (inputs.num_micro > 1)
    held = np.where(is_reserved, 2.0 * inputs.pp + 1.0, held)
    return np.where(inputs.gpipe > 0, inputs.num_micro, held)


def _activation_bytes_per_token(inputs: CostModelInputs) -> tuple[Column, Column, Column]:
    """Return the largest stage's activation bytes per token: those per micro-batch held, and those needed only once.

    The latter are those of the layer that is being recomputed, and those that the pass of any layer needs. Full
    recomputation keeps each layer's input, and the activations of one complete layer.
    """
    layers = sizes.layers_of_largest_stage(inputs)
    whole = _layer_bytes_per_token(inputs)
    boundary = 2.0 * inputs.hidden / _split_of_norms(inputs)
    per_micro_batch = layers * kept_bytes_per_token(inputs)
    repeats_experts = inputs.selective * (inputs.selective_share > 0)
    repeated = inputs.full * whole + repeats_experts * _routed_bytes_per_token(inputs)
    return per_micro_batch, repeated, boundary * 2.0 + _buffer_bytes_per_token(inputs)


def kept_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of activations that one layer keeps for its backward pass."""
    whole = _layer_bytes_per_token(inputs)
    each = np.where(inputs.selective > 0, whole - _selected_bytes_per_token(inputs, whole), whole)
    boundary = 2.0 * inputs.hidden / _split_of_norms(inputs)
    return np.where(inputs.full > 0, boundary, each)


def _buffer_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of the collectives' buffers in one layer's pass.

    With sequence parallelism, a linear layer gathers its input of all ranks into a buffer, and its backward computes
    the gradient of all ranks' tokens before it is scattered (Megatron-Core, tensor_parallel/layers.py). The dispatch of
    experts sends routed tokens from one buffer and receives them in another (transformer/moe/token_dispatcher.py).
    """
    gathered = np.where((inputs.sp > 0) & (inputs.tp > 1), 4.0 * inputs.hidden, 0.0)
    has_dispatch = (inputs.moe_layers > 0) & (inputs.ep > 1)
    dispatched = np.where(has_dispatch, 4.0 * inputs.topk * inputs.hidden / inputs.tp, 0.0)
    return gathered + dispatched


def _selected_bytes_per_token(inputs: CostModelInputs, whole: Column) -> Column:
    """Return the bytes of a layer's activations that selective recomputation drops.

    Unfused attention drops its scores. PyTorch drops the outputs of some operators. Megatron-Core drops the outputs of
    norms and of the experts' activation, and latent attention's queries, keys and values.
    """
    eager = _eager_bytes_per_token(inputs)
    routed = _routed_bytes_per_token(inputs)
    # Operators are chosen among those whose outputs are kept: all else, such as the fp32 copies of norms and the
    # grouped multiplications of experts, is repeated.
    always_repeated = (inputs.selective_share > 0) * (eager + routed)
    of_operators = inputs.selective_share * 1.2 * (whole - eager - routed) + always_repeated
    norms = 2.0 * _input_bytes(inputs) * inputs.hidden / _split_of_norms(inputs)
    expert_width = sizes.moe_share(inputs) * inputs.topk * inputs.expert_ffn / inputs.tp
    expanded = inputs.heads * inputs.head_dim + inputs.kv_width
    latent = 2.0 * np.maximum(expanded - inputs.qkv_width, 0.0) / inputs.tp
    of_modules = inputs.selects_modules * (norms + _input_bytes(inputs) * expert_width + latent)
    return np.where(inputs.fused > 0, of_operators + of_modules, _score_bytes_per_token(inputs))


def _score_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of unfused attention's scores: 5 a s for softmax's output and dropout's mask and output."""
    return np.where(inputs.fused > 0, 0.0, 5.0 * inputs.heads * inputs.attended / inputs.tp)


def _input_bytes(inputs: CostModelInputs) -> Column:
    """Return the bytes per element of a matrix multiplication's kept input: one if it is kept in fp8."""
    return np.where(inputs.keeps_low * inputs.is_low > 0, 1.0, 2.0)


def _split_of_norms(inputs: CostModelInputs) -> Column:
    """Return over how many ranks sequence parallelism splits what is outside of tensor parallelism."""
    return np.where(inputs.sp > 0, inputs.tp, 1.0)


def _layer_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of one layer's activations per token.

    For all tokens, or with sequence parallelism for this rank's share: the inputs and outputs of two norms, and two
    dropout masks in software from before fused attention. Split by TP: queries, keys and values, attention's output,
    and the feed-forward network's inner widths (the outputs of each up projection and of the activation). Experts also
    keep a copy of each token that they receive.
    """
    kept = _input_bytes(inputs)
    norms = 4.0 + 2.0 * kept + 2.0 * (1.0 - np.asarray(inputs.fused))
    shared = norms * inputs.hidden / _split_of_norms(inputs)
    per_inner = 2.0 * (inputs.ffn_matrices - 1.0) + kept
    attention = 2.0 * (inputs.heads * inputs.head_dim + inputs.kv_width + inputs.out_width)
    low_copy = np.where(kept < 2.0, inputs.out_width, 0.0)
    routed = sizes.moe_share(inputs) * kept * inputs.topk * inputs.hidden * inputs.etp
    split = attention + low_copy + per_inner * _inner_width(inputs) + routed
    return shared + split / inputs.tp + _score_bytes_per_token(inputs) + _eager_bytes_per_token(inputs)


def _routed_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return the bytes of a layer's routed experts per token: the tokens that they receive, and their inner widths."""
    kept = _input_bytes(inputs)
    received = kept * inputs.hidden * inputs.etp
    inner = (2.0 * (inputs.ffn_matrices - 1.0) + kept) * inputs.expert_ffn
    return sizes.moe_share(inputs) * inputs.topk * (received + inner) / inputs.tp


def _inner_width(inputs: CostModelInputs) -> Column:
    """Return the feed-forward widths that a token passes, averaged over dense layers and layers with experts."""
    share_moe = sizes.moe_share(inputs)
    return (1.0 - share_moe) * inputs.ffn + share_moe * (inputs.shared_ffn + inputs.topk * inputs.expert_ffn)


def _eager_bytes_per_token(inputs: CostModelInputs) -> Column:
    """Return what eager PyTorch keeps of one layer in addition, if its norms and its gate are not single kernels.

    Each RMSNorm keeps its input and its result in fp32, and the gate keeps its activation apart.
    """
    is_eager_and_gated = inputs.eager * (inputs.ffn_matrices > 2)
    norms = 16.0 * inputs.hidden / _split_of_norms(inputs)
    return is_eager_and_gated * (norms + 2.0 * _inner_width(inputs) / inputs.tp)
