"""The step time of layouts, in parts that add up to it.

Pipeline (Narayanan et al., arXiv 2104.04473, 2.2): (m - 1) micro-batches at the pace of the slowest stage, and one
through all stages, whose fill and drain interleaving divides by the number of chunks. Stages differ: the first has
the embedding, the last the logits, and layers that do not divide evenly leave some stage one more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.plan import sizes
from flatout.plan.case import Case, Column
from flatout.plan.collectives import all_gather_s, all_reduce_s, dispatch_s, send_s
from flatout.plan.constants import Constants
from flatout.plan.kernels import attention_s, cast_bytes, elementwise_bytes, matmul_s

# Kernels of one layer, forward: norms 2, products 4, attention 1, activation, residuals, rotary and copies; before
# fused attention and fused norms about twice as many.
KERNELS_FUSED, KERNELS_UNFUSED, KERNELS_EXPERTS = 14.0, 30.0, 14.0
# Of each expert of a rank: its two or three products, and in fp8 the casts of their operands.
KERNELS_EXPERT, KERNELS_CAST = 3.0, 3.0
NATIVE = 0.5  # time that the host takes for one of these, over one of Python's: a loop in C++ launches them
PARTS = (
    "compute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_send",
    "bubble",
    "imbalance",
    "data_parallel",
    "optimizer",
    "jitter",
)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds; columns of one length."""

    total_s: Column
    parts_s: dict[str, Column]


@dataclass(frozen=True, slots=True)
class _Layer:
    forward: Column
    backward: Column
    weights: Column  # of the backward, the gradients of weights: what it takes without recomputation, halved
    tensor: Column  # both directions, with what is recomputed
    context: Column
    expert: Column


def step_time(case: Case, constants: Constants) -> StepTime:
    """Predict every row of the case."""
    tokens = case.micro_batch * case.seq / case.cp
    layer = _layer(case, constants, tokens)
    compute = layer.forward + layer.backward
    exposed = layer.tensor + layer.context + layer.expert
    whole = compute + exposed
    most, mean = sizes.layers_of_fullest_stage(case), case.layers / case.pp
    logits = _logits_s(case, constants, tokens)

    all_stages = case.layers * whole + logits
    slowest = np.maximum(most * whole, sizes.layers_of_last_stage(case) * whole + logits)
    slowest = np.where(case.pp > 1, slowest, all_stages)
    even = all_stages / case.pp
    num_micro = case.num_micro
    fill = (all_stages - slowest) / case.vpp * (1.0 - case.zero_bubble * _zero_bubble_share(case, layer))
    imbalance = num_micro * (slowest - even)
    bubble = np.where(case.pp > 1, fill, 0.0)

    send = send_s(
        case,
        constants,
        2.0 * tokens * case.hidden / np.where(case.scatters > 0, case.tp, 1.0),
        case.tp * case.cp * case.dp,
    )
    sends_exposed = 2.0 * (case.pp - 1.0) + 2.0 * num_micro * case.vpp * constants.sends * (
        1.0 - 0.8 * case.overlaps_pp * (case.vpp > 1)
    )
    sends = np.where(case.pp > 1, send * sends_exposed, 0.0)

    stage_compute = mean * whole
    data = _data_parallel_s(case, constants, stage_compute, num_micro)
    optimizer = _optimizer_s(case, constants)
    doublings = np.log2(np.maximum(case.gpus / np.minimum(case.domain, 8.0), 1.0))
    before = num_micro * even + imbalance + bubble + sends + data + optimizer
    jitter = before * constants.jitter * doublings
    pieces = num_micro / case.pp
    parts = {
        "compute": pieces * (case.layers * compute + logits),
        "tensor_parallel": pieces * case.layers * layer.tensor,
        "context_parallel": pieces * case.layers * layer.context,
        "expert_parallel": pieces * case.layers * layer.expert,
        "pipeline_send": sends,
        "bubble": bubble,
        "imbalance": imbalance,
        "data_parallel": data,
        "optimizer": optimizer,
        "jitter": jitter,
    }
    return StepTime(before + jitter, parts)


def _layer(case: Case, constants: Constants, tokens: Column) -> _Layer:
    """Seconds of one layer (the mean over dense layers and those with experts) and one micro-batch."""
    attention_in = matmul_s(case, constants, tokens, case.qkv_width / case.tp, case.hidden)
    attention_out = matmul_s(case, constants, tokens, case.hidden, case.out_width / case.tp)
    products = attention_in + attention_out + _ffn_s(case, constants, tokens)
    scores_forward, scores_backward = attention_s(case, constants, tokens)
    norms, inner = elementwise_bytes(case, tokens)
    norms = norms / np.where(case.sp > 0, case.tp, 1.0)
    passes = constants.elementwise * np.where(case.eager > 0, constants.eager, 1.0)
    moved = (norms + inner) * passes / case.memory_rate
    cast = cast_bytes(case, tokens) * constants.cast / case.memory_rate
    kernels = np.where(case.fused > 0, KERNELS_FUSED, KERNELS_UNFUSED)
    experts_here = case.experts / case.ep  # each has products of its own: grouped ones are launched one by one
    each_expert = KERNELS_EXPERT + KERNELS_CAST * case.is_low
    share_moe = case.moe_layers / case.layers
    of_experts = each_expert * experts_here * share_moe
    kernels = kernels + KERNELS_EXPERTS * share_moe + 6.0 * case.is_low
    gap = np.where(case.blocking > 0, constants.host_s, constants.launch_s * (1.0 - 0.7 * case.graphs))
    launches = (kernels + of_experts) * gap
    host = (kernels + NATIVE * of_experts) * constants.host_s * (1.0 - case.graphs)

    forward = np.maximum(products + scores_forward + moved + cast + launches, host)
    backward = np.maximum(
        2.0 * constants.backward * products + scores_backward + 2.0 * moved + cast + 2.0 * launches, 2.0 * host
    )
    attention_again = np.where(case.fused > 0, 0.0, scores_forward)
    again = case.full * forward + case.selective * (
        attention_again + case.selective_share * products + (case.selective_share > 0) * moved
    )

    group_bytes = 2.0 * tokens * case.hidden
    tensor = all_reduce_s(case, constants, group_bytes, case.tp, 1.0) * (4.0 + 2.0 * case.full)
    tensor = tensor * (1.0 - case.overlaps_tp * np.minimum(constants.tensor_overlap, 1.0))
    expert = _expert_parallel_s(case, constants, tokens) * (2.0 + case.full)
    expert = expert * (1.0 - case.overlaps_ep * np.minimum(constants.expert_overlap, 1.0))
    hidden_by = 0.8 * scores_forward
    around = _ring_s(case, constants, tokens)
    context = np.maximum(around - hidden_by, 0.0) + np.maximum(2.0 * around - 0.8 * scores_backward, 0.0)
    return _Layer(forward, backward + again, backward / 2.0, tensor, context, expert)


def _ffn_s(case: Case, constants: Constants, tokens: Column) -> Column:
    """Forward products of the feed-forward network; experts as grouped products of the tokens that reach each one."""
    up = case.ffn_matrices - 1.0
    share_moe = case.moe_layers / case.layers

    def pair(rows: Column, width: Column) -> Column:
        return matmul_s(case, constants, rows, up * width, case.hidden) + matmul_s(
            case, constants, rows, case.hidden, width
        )

    dense = pair(tokens, case.ffn / case.tp)
    if not np.any(case.moe_layers):
        return dense
    shared = pair(tokens, case.shared_ffn / case.tp)
    local = np.maximum(case.experts / case.ep, 1.0)
    rows = tokens / case.tp * case.topk / local
    routed = local * pair(np.maximum(rows, 1.0), case.expert_ffn) / constants.experts
    router = matmul_s(case, constants, tokens, case.experts, case.hidden, in_half=True)
    return (1.0 - share_moe) * dense + share_moe * (shared + routed + router)


def _expert_parallel_s(case: Case, constants: Constants, tokens: Column) -> Column:
    """Dispatch and combine of one layer, forward. Expert ranks are neighbours across TP and DP (Megatron's order)."""
    if not np.any(case.moe_layers):
        return 0.0
    token_bytes = 2.0 * tokens / case.tp * case.hidden
    share_moe = case.moe_layers / case.layers
    return 2.0 * share_moe * dispatch_s(case, constants, token_bytes, case.topk, case.ep, 1.0) * constants.exchange


def _ring_s(case: Case, constants: Constants, tokens: Column) -> Column:
    """All keys and values once around the context-parallel group, forward."""
    num_bytes = 2.0 * tokens * case.cp * case.kv_width / case.tp
    return all_gather_s(case, constants, num_bytes, case.cp, case.tp)


def _logits_s(case: Case, constants: Constants, tokens: Column) -> Column:
    """Logits and loss of one micro-batch, both directions: three products, and five passes over fp32 logits."""
    product = matmul_s(case, constants, tokens, case.vocab / case.tp, case.hidden, in_half=True)
    passes = 20.0 * tokens * case.vocab / case.tp / case.memory_rate * constants.elementwise
    return 3.0 * product + passes


def _zero_bubble_share(case: Case, layer: _Layer) -> Column:
    """What of the bubble weight gradients fill: F + B - W is left of F + B + W (H1; Qi et al., arXiv 2401.10241), where
    B is the gradients of inputs with what is recomputed. With fewer micro-batches than stages there are fewer to fill
    it with: one alone fills half as much, as `plan/pipeline.py` plays it through.
    """
    lacking = np.clip((case.pp - case.num_micro) / np.maximum(case.pp - 1.0, 1.0), 0.0, 1.0)
    return layer.weights * (2.0 - lacking) / (layer.forward + layer.backward)


def _data_parallel_s(case: Case, constants: Constants, stage_compute: Column, num_micro: Column) -> Column:
    """What of the gradients' reduction and the parameters' gathering is exposed.

    ZeRO 0-2: once a step, hidden by at most the last micro-batch's backward and the first one's forward. ZeRO 3:
    gathered in forward and backward and reduced, each micro-batch, beside that micro-batch's compute; the first
    layer's never hides. Where shards are copied (HSDP), the copies sum their gradients once a step.
    """
    size, stride = case.dp * case.cp, case.tp
    dense, expert = sizes.dense_parameters(case), sizes.expert_parameters(case)
    expert_size, expert_stride = sizes.expert_replicas(case), case.ep
    shards, expert_shards = sizes.shards(case)
    layers = sizes.layers_of_fullest_stage(case)
    calls = layers * np.where(case.zero >= 3, case.gathers, 1.0)
    pieces = np.where(case.zero >= 3, case.gather_copies, 1.0) * dense
    gather = all_gather_s(case, constants, 2.0 * pieces, shards, stride, calls)
    reduce = all_gather_s(case, constants, case.gradient_bytes * pieces, shards, stride, calls)
    whole = all_reduce_s(case, constants, case.gradient_bytes * dense, size, stride)
    copies: Column = 0.0
    if np.any(case.shard):
        part = case.gradient_bytes * dense / shards
        copies = all_reduce_s(case, constants, part, size / shards, stride * shards)
    if np.any(case.moe_layers):
        gather = gather + all_gather_s(case, constants, 2.0 * expert, expert_shards, expert_stride, layers)
        reduce = reduce + all_gather_s(
            case, constants, case.gradient_bytes * expert, expert_shards, expert_stride, layers
        )
        whole = whole + all_reduce_s(case, constants, case.gradient_bytes * expert, expert_size, expert_stride)
        if np.any(case.shard):
            part = case.gradient_bytes * expert / expert_shards
            copies = copies + all_reduce_s(
                case, constants, part, expert_size / expert_shards, expert_stride * expert_shards
            )
    once = np.where(case.zero == 0, whole, reduce + gather + copies)
    overlap = np.minimum(constants.overlap, 1.0) * case.overlaps_dp
    replicated = once - np.minimum(once, stage_compute) * overlap
    each = (2.0 + case.full * case.gathers_again) * gather + reduce
    sharded = num_micro * (each - np.minimum(each, stage_compute) * overlap)
    if np.any(case.shard):
        spare = np.maximum(stage_compute - each, 0.0)  # of the last micro-batch
        sharded = sharded + copies - np.minimum(copies, spare) * overlap
    return np.where(case.zero >= 3, sharded, replicated)


def _optimizer_s(case: Case, constants: Constants) -> Column:
    """Adam in fp32: reads gradient, master weight and two moments, writes three and a 16-bit weight: 30 bytes.

    Offloaded, the host does so with its memory, after gradients went there, and before weights come back.
    """
    shards, expert_shards = sizes.shards(case)
    owned = sizes.dense_parameters(case) / np.where(case.zero >= 1, shards, 1.0)
    owned = owned + sizes.expert_parameters(case) / np.where(case.zero >= 1, expert_shards, 1.0)
    here = 30.0 * owned / case.memory_rate * constants.update
    if not np.any(case.offload):
        return here
    moved = (case.gradient_bytes + 2.0) * owned / case.host_link
    return np.where(case.offload > 0, moved + 30.0 * owned / case.host_memory * constants.update, here)
