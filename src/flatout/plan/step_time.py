"""The step time of layouts, broken down into parts that sum to it.

The pipeline's time (Narayanan et al., arXiv 2104.04473, 2.2) is that of (m - 1) micro-batches at the pace of the
slowest stage, plus one micro-batch through all stages; interleaving divides the fill and drain of the latter by the
number of chunks. Stages differ: the first has the embedding, the last has the logits, and if the layers do not divide
evenly, some stages have an extra layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.plan import sizes
from flatout.plan.collectives import all_gather_s, all_reduce_s, dispatch_s, send_s
from flatout.plan.constants import Constants
from flatout.plan.inputs import Column, CostModelInputs
from flatout.plan.kernels import attention_s, cast_bytes, elementwise_bytes, matmul_s

# Number of kernels in one layer's forward: 2 norms, 4 matmuls, 1 attention, plus activation, residuals, rotary and
# copies. Without fused attention and fused norms, there are about twice as many.
KERNELS_FUSED, KERNELS_UNFUSED, KERNELS_EXPERTS = 14.0, 30.0, 14.0
# Number of kernels per expert on a rank: its two or three matmuls, and in fp8 the casts of their operands.
KERNELS_EXPERT, KERNELS_CAST = 3.0, 3.0
KERNELS_LOW_PRECISION = 6.0  # number of casts in one layer in fp8 and fp4
NATIVE = 0.5  # host time per expert kernel, relative to a launch from Python: experts are launched by a C++ loop
GRAPHED_GAP = 0.7  # share of the gap between kernels that a CUDA graph removes
TOWER_RATE = 0.6  # rate of a tower's narrow layers, relative to large matmuls: assumed
WIDE_EXPERT = 4096.0  # inner width up to which a grouped multiplication loses all that `experts` says: assumed
SMALLEST_BUCKET, BUCKET_PER_RANK = 40e6, 1e6  # parameters of a bucket of gradients
HIDDEN_SENDS = 0.8  # share of the steady-state sends that interleaving hides
HIDES_RING = 0.8  # share of attention's time that can hide the transfer of keys and values around the ring
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
class StepTimeColumns:
    """Predicted step times and their parts in seconds, as columns of equal length."""

    total_s: Column
    parts_s: dict[str, Column]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Seconds per layer and micro-batch, averaged over the dense layers and the layers with experts."""

    forward: Column
    backward: Column  # including recomputation
    weights: Column  # weight gradients: half of the backward without recomputation
    tensor: Column  # communication in forward and backward, including recomputation
    context: Column
    expert: Column


def step_time(inputs: CostModelInputs, constants: Constants) -> StepTimeColumns:
    """Predict the step time of every row of the inputs."""
    tokens = inputs.micro_batch * inputs.seq / inputs.cp
    layer = _layer(inputs, constants, tokens)
    compute = layer.forward + layer.backward
    exposed = layer.tensor + layer.context + layer.expert
    each_layer = compute + exposed
    logits = _logits_s(inputs, constants, tokens)
    towers = towers_s(inputs, constants)

    has_pipeline = inputs.pp > 1
    all_stages = inputs.layers * each_layer + logits + towers
    largest_stage = sizes.layers_of_largest_stage(inputs) * inputs.stage_time * each_layer + towers  # the first one
    last_stage = sizes.layers_of_last_stage(inputs) * inputs.last_stage_time * each_layer + logits
    slowest = np.where(has_pipeline, np.maximum(largest_stage, last_stage), all_stages)
    even = all_stages / inputs.pp
    num_micro = inputs.num_micro
    # In 1F1B, the stage before a shorter last one waits for it twice, and less: after its first forward and at the end.
    waits = np.maximum(last_stage - slowest / 3.0, 0.0) + np.maximum(last_stage - slowest * 2.0 / 3.0, 0.0)
    is_plain = (inputs.vpp == 1) & (inputs.gpipe == 0) & (inputs.zero_bubble == 0) & (num_micro > 1)
    saved = np.where(is_plain & (last_stage < slowest), last_stage - waits, 0.0)
    fill = (all_stages - slowest - saved) / inputs.vpp * (1.0 - inputs.zero_bubble * _zero_bubble_share(inputs, layer))
    imbalance = num_micro * (slowest - even)
    bubble = np.where(has_pipeline, fill, 0.0)
    sends = _sends_s(inputs, constants, tokens)

    stage_compute = inputs.layers / inputs.pp * each_layer
    data = _data_parallel_s(inputs, constants, stage_compute, num_micro)
    optimizer = _optimizer_s(inputs, constants)
    before_jitter = num_micro * even + imbalance + bubble + sends + data + optimizer
    doublings = np.log2(np.maximum(inputs.gpus / np.minimum(inputs.domain, 8.0), 1.0))
    jitter = before_jitter * constants.jitter * doublings
    micro_batches_per_stage = num_micro / inputs.pp
    layers_per_stage = micro_batches_per_stage * inputs.layers
    parts = {
        "compute": micro_batches_per_stage * (inputs.layers * compute + logits + towers),
        "tensor_parallel": layers_per_stage * layer.tensor,
        "context_parallel": layers_per_stage * layer.context,
        "expert_parallel": layers_per_stage * layer.expert,
        "pipeline_send": sends,
        "bubble": bubble,
        "imbalance": imbalance,
        "data_parallel": data,
        "optimizer": optimizer,
        "jitter": jitter,
    }
    return StepTimeColumns(before_jitter + jitter, parts)


def layer_s(inputs: CostModelInputs, constants: Constants) -> Column:
    """Return the seconds of one layer for one micro-batch: computation and communication, forward and backward."""
    layer = _layer(inputs, constants, inputs.micro_batch * inputs.seq / inputs.cp)
    return layer.forward + layer.backward + layer.tensor + layer.context + layer.expert


def _layer(inputs: CostModelInputs, constants: Constants, tokens: Column) -> _Layer:
    """Return the seconds that one layer takes for one micro-batch."""
    attention_in = matmul_s(inputs, constants, tokens, inputs.qkv_width / inputs.tp, inputs.hidden)
    attention_out = matmul_s(inputs, constants, tokens, inputs.hidden, inputs.out_width / inputs.tp)
    matmuls = attention_in + attention_out + _ffn_s(inputs, constants, tokens)
    scores_forward, scores_backward = attention_s(inputs, constants, tokens)
    moved = _elementwise_s(inputs, constants, tokens)
    cast = cast_bytes(inputs, tokens) * constants.cast / inputs.memory_rate
    launches, host = _launches_s(inputs, constants)

    forward = np.maximum(matmuls + scores_forward + moved + cast + launches, host)
    # Frozen weights have no gradients: half of the backward's multiplications.
    weight_gradients = np.where(inputs.adapters > 0, 0.0, inputs.trained)
    backward_matmuls = (1.0 + weight_gradients) * constants.backward * matmuls
    on_gpu = backward_matmuls + scores_backward + 2.0 * moved + cast + 2.0 * launches
    backward = np.maximum(on_gpu, 2.0 * host)

    attention_again = np.where(inputs.fused > 0, 0.0, scores_forward)
    routed_again = (1.0 - inputs.selective_share) * _routed_s(inputs, constants, tokens)
    operators_again = inputs.selective_share * matmuls + (inputs.selective_share > 0) * (moved + routed_again)
    # The modules are norms, the experts' activation and latent attention's up projections. The first two take less than
    # all elementwise operations, and the last less than all projections of attention's inputs.
    is_latent = inputs.heads * inputs.head_dim + inputs.kv_width > inputs.qkv_width
    modules_again = inputs.selects_modules * (moved + np.where(is_latent, attention_in, 0.0))
    selected_again = attention_again + operators_again + modules_again
    recomputed = inputs.full * forward + inputs.selective * selected_again
    return _Layer(
        forward=forward,
        backward=backward + recomputed,
        weights=backward / 2.0,
        tensor=_tensor_parallel_s(inputs, constants, tokens),
        context=_context_parallel_s(inputs, constants, tokens, scores_forward, scores_backward),
        expert=_expert_parallel_s(inputs, constants, tokens),
    )


def _elementwise_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the forward seconds of a layer's norms, activations and residuals, from their memory traffic."""
    norms, inner = elementwise_bytes(inputs, tokens)
    norms = norms / np.where(inputs.sp > 0, inputs.tp, 1.0)
    passes = constants.elementwise * np.where(inputs.eager > 0, constants.eager, 1.0)
    return (norms + inner) * passes / inputs.memory_rate


def _launches_s(inputs: CostModelInputs, constants: Constants) -> tuple[Column, Column]:
    """Return a layer's forward seconds in gaps between kernels, and the host's seconds to launch the kernels."""
    moe_share = sizes.moe_share(inputs)
    experts_here = inputs.experts / inputs.ep  # even grouped matmuls are launched once per expert
    per_expert = KERNELS_EXPERT + KERNELS_CAST * inputs.is_low
    of_experts = per_expert * experts_here * moe_share
    kernels = np.where(inputs.fused > 0, KERNELS_FUSED, KERNELS_UNFUSED)
    kernels = kernels + KERNELS_EXPERTS * moe_share + KERNELS_LOW_PRECISION * inputs.is_low
    gap = constants.launch_s * (1.0 - GRAPHED_GAP * inputs.graphs)
    gap = np.where(inputs.blocking > 0, constants.host_s, gap)
    host = (kernels + NATIVE * of_experts) * constants.host_s * (1.0 - inputs.graphs)
    return (kernels + of_experts) * gap, host


def _ffn_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the forward seconds of the feed-forward network's matmuls, averaged over all layers."""
    dense = _up_and_down_s(inputs, constants, tokens, inputs.ffn / inputs.tp)
    if not np.any(inputs.moe_layers):
        return dense
    moe_share = sizes.moe_share(inputs)
    shared = _up_and_down_s(inputs, constants, tokens, inputs.shared_ffn / inputs.tp)
    router = matmul_s(inputs, constants, tokens, inputs.experts, inputs.hidden, in_half=True)
    return (1.0 - moe_share) * dense + moe_share * (shared + router) + _routed_s(inputs, constants, tokens)


def _routed_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the forward seconds of the experts' matmuls, averaged over all layers.

    The experts of a rank run as grouped matmuls, each over the tokens that are routed to that expert.
    """
    if not np.any(inputs.moe_layers):
        return 0.0
    experts_here = np.maximum(inputs.experts / inputs.ep, 1.0)
    # The ranks that share an expert's matrices multiply the tokens of all of them, each with its part.
    rows = tokens / inputs.tp * inputs.topk / experts_here * inputs.etp
    # Experts as wide as a dense model's network multiply like one; what grouping loses shows on narrow ones.
    narrowness = np.minimum(WIDE_EXPERT / np.maximum(inputs.expert_ffn, 1.0), 1.0)
    grouped_rate = 1.0 - (1.0 - np.minimum(constants.experts, 1.0)) * narrowness
    each = _up_and_down_s(inputs, constants, np.maximum(rows, 1.0), inputs.expert_ffn / inputs.etp)
    return sizes.moe_share(inputs) * experts_here * each / grouped_rate


def _up_and_down_s(inputs: CostModelInputs, constants: Constants, rows: Column, width: Column) -> Column:
    """Return the forward seconds of a feed-forward network of this width."""
    num_up = inputs.ffn_matrices - 1.0
    up = matmul_s(inputs, constants, rows, num_up * width, inputs.hidden)
    return up + matmul_s(inputs, constants, rows, inputs.hidden, width)


def _tensor_parallel_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the exposed seconds of a layer's tensor-parallel collectives in forward and backward."""
    group_bytes = 2.0 * tokens * inputs.hidden
    calls = 4.0 + 2.0 * inputs.full
    total = all_reduce_s(inputs, constants, group_bytes, inputs.tp, 1.0) * calls
    return total * (1.0 - inputs.overlaps_tp * np.minimum(constants.tensor_overlap, 1.0))


def _expert_parallel_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the exposed seconds of a layer's dispatch and combine in forward and backward.

    The ranks of an expert-parallel group are consecutive across TP and DP (Megatron's order).
    """
    forward: Column = 0.0
    if np.any(inputs.moe_layers):
        token_bytes = 2.0 * tokens / inputs.tp * inputs.hidden
        dispatch = dispatch_s(inputs, constants, token_bytes, inputs.topk, inputs.ep, inputs.etp)
        # With expert tensor parallelism, a group gathers what arrived at its ranks, and sums the results.
        gathered_bytes = token_bytes * inputs.topk * inputs.etp
        gather = all_gather_s(inputs, constants, gathered_bytes, inputs.etp, 1.0)
        forward = 2.0 * sizes.moe_share(inputs) * (dispatch * constants.exchange + gather)
    total = forward * (2.0 + inputs.full)
    return total * (1.0 - inputs.overlaps_ep * np.minimum(constants.expert_overlap, 1.0))


def _context_parallel_s(
    inputs: CostModelInputs, constants: Constants, tokens: Column, scores_forward: Column, scores_backward: Column
) -> Column:
    """Return the seconds of sending keys and values around the context-parallel group that attention does not hide."""
    num_bytes = 2.0 * tokens * inputs.cp * inputs.kv_width / inputs.tp
    around = all_gather_s(inputs, constants, num_bytes, inputs.cp, inputs.tp)
    forward = np.maximum(around - HIDES_RING * scores_forward, 0.0)
    return forward + np.maximum(2.0 * around - HIDES_RING * scores_backward, 0.0)


def _logits_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the seconds of one micro-batch's logits and loss in forward and backward.

    These are three matmuls, and five passes that read or write the fp32 logits.
    """
    matmul = matmul_s(inputs, constants, tokens, inputs.vocab / inputs.tp, inputs.hidden, in_half=True)
    passes = 20.0 * tokens * inputs.vocab / inputs.tp / inputs.memory_rate * constants.elementwise
    return 3.0 * matmul + passes


def towers_s(inputs: CostModelInputs, constants: Constants) -> Column:
    """Return the seconds of one micro-batch's images or sound in forward and backward, on the first stage.

    Towers are narrow, and neither TP nor CP splits them: each rank of a group computes the same.
    """
    rate = inputs.half_peak * constants.matmul * TOWER_RATE
    per_work = 2.0 * inputs.micro_batch / rate
    backward = (2.0 * constants.backward + inputs.full) * inputs.tower_trained_work
    return (inputs.tower_work + backward) * per_work


def _sends_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> Column:
    """Return the exposed seconds of the pipeline's sends and receives per step."""
    num_bytes = 2.0 * tokens * inputs.hidden / np.where(inputs.scatters > 0, inputs.tp, 1.0)
    send = send_s(inputs, constants, num_bytes, inputs.tp * inputs.cp * inputs.dp)
    hidden = HIDDEN_SENDS * inputs.overlaps_pp * (inputs.vpp > 1)
    fill_and_drain = 2.0 * (inputs.pp - 1.0)
    steady_state = 2.0 * inputs.num_micro * inputs.vpp * constants.sends * (1.0 - hidden)
    return np.where(inputs.pp > 1, send * (fill_and_drain + steady_state), 0.0)


def _zero_bubble_share(inputs: CostModelInputs, layer: _Layer) -> Column:
    """Return the share of the bubble that weight gradients fill.

    The H1 schedule (Qi et al., arXiv 2401.10241) reduces the bubble from F + B + W to F + B - W, where B is the time of
    the input gradients including recomputation. With fewer micro-batches than stages, fewer weight gradients are
    available to fill it: a single micro-batch fills half as much, as the simulation in `plan/pipeline.py` shows.
    """
    lacking = np.clip((inputs.pp - inputs.num_micro) / np.maximum(inputs.pp - 1.0, 1.0), 0.0, 1.0)
    return layer.weights * (2.0 - lacking) / (layer.forward + layer.backward)


def _data_parallel_s(inputs: CostModelInputs, constants: Constants, stage_compute: Column, num_micro: Column) -> Column:
    """Return the exposed seconds of reducing gradients and gathering parameters.

    With ZeRO 0-2, this happens once per step and can be hidden by the last micro-batch's backward and the first
    micro-batch's forward. With ZeRO 3, each micro-batch gathers in forward and backward and reduces, overlapping its
    own compute; the first layer's collectives are never hidden. If shards are copied (HSDP), the copies sum their
    gradients once per step.
    """
    times = _data_parallel_collectives(inputs, constants)
    overlap = np.minimum(constants.overlap, 1.0) * inputs.overlaps_dp
    once = np.where(inputs.zero == 0, times.all_reduce, times.reduce + times.gather + times.copies)
    replicated = once - np.minimum(once, stage_compute) * overlap
    gathers = 2.0 + inputs.full * inputs.gathers_again
    per_micro_batch = gathers * times.gather + times.reduce
    sharded = num_micro * (per_micro_batch - np.minimum(per_micro_batch, stage_compute) * overlap)
    if np.any(inputs.shard):
        spare = np.maximum(stage_compute - per_micro_batch, 0.0)  # compute left to hide the copies' all-reduce
        sharded = sharded + times.copies - np.minimum(times.copies, spare) * overlap
    return np.where(inputs.zero >= 3, sharded, replicated)


@dataclass(frozen=True, slots=True)
class _DataParallel:
    """Seconds of a single run of each collective over the replicas, for dense parameters and experts together."""

    gather: Column
    reduce: Column
    all_reduce: Column  # when nothing is sharded
    copies: Column  # all-reduce between the copies of a shard (HSDP)


def _data_parallel_collectives(inputs: CostModelInputs, constants: Constants) -> _DataParallel:
    size, stride = inputs.dp * inputs.cp, inputs.tp
    expert_size, expert_stride = sizes.expert_replicas(inputs), inputs.ep * inputs.etp
    shards, expert_shards = sizes.shards(inputs)
    layers = sizes.layers_of_largest_stage(inputs)
    dense, expert = sizes.dense_parameters(inputs), sizes.expert_parameters(inputs)
    trained, trained_experts = inputs.trained * dense, inputs.trained_experts * expert
    is_zero3 = inputs.zero >= 3
    calls = np.where(is_zero3, layers * inputs.gathers, _num_buckets(dense, size))
    copies_of_pieces = np.where(is_zero3, inputs.gather_copies, 1.0)
    gradient_bytes = inputs.gradient_bytes * trained
    # With ZeRO 1 and 2, only what was updated is gathered; with ZeRO 3, all weights are.
    gathered, gathered_experts = np.where(is_zero3, dense, trained), np.where(is_zero3, expert, trained_experts)
    gather = all_gather_s(inputs, constants, 2.0 * copies_of_pieces * gathered, shards, stride, calls)
    reduce = all_gather_s(inputs, constants, copies_of_pieces * gradient_bytes, shards, stride, calls)
    all_reduce = all_reduce_s(inputs, constants, gradient_bytes, size, stride)
    copies: Column = 0.0
    has_copies = np.any(inputs.shard)
    if has_copies:
        copies = all_reduce_s(inputs, constants, gradient_bytes / shards, size / shards, stride * shards)
    if np.any(inputs.moe_layers):
        gradient_bytes = inputs.gradient_bytes * trained_experts
        expert_calls = np.where(is_zero3, layers, _num_buckets(expert, expert_size))
        gather = gather + all_gather_s(
            inputs, constants, 2.0 * gathered_experts, expert_shards, expert_stride, expert_calls
        )
        reduce = reduce + all_gather_s(inputs, constants, gradient_bytes, expert_shards, expert_stride, expert_calls)
        all_reduce = all_reduce + all_reduce_s(inputs, constants, gradient_bytes, expert_size, expert_stride)
        if has_copies:
            num_copies, copy_stride = expert_size / expert_shards, expert_stride * expert_shards
            copies = copies + all_reduce_s(inputs, constants, gradient_bytes / expert_shards, num_copies, copy_stride)
    return _DataParallel(gather=gather, reduce=reduce, all_reduce=all_reduce, copies=copies)


def _num_buckets(parameters: Column, size: Column) -> Column:
    """Return the number of calls in which gradients are reduced once per step, and parameters gathered.

    Megatron-Core's buckets grow with the group, so that the latency of its ring stays small compared with the transfer
    (`distributed_data_parallel_config.py`: 40 million parameters, or a million per rank if that is more).
    """
    return np.ceil(parameters / np.maximum(SMALLEST_BUCKET, BUCKET_PER_RANK * size))


def _optimizer_s(inputs: CostModelInputs, constants: Constants) -> Column:
    """Return the seconds of the optimizer's update of what is trained.

    It reads the gradient, the master weight and the states, and writes the last two and a 16-bit weight: for Adam, 30
    bytes per parameter. With offloading, the host does this in its own memory, after receiving the gradients and before
    sending the weights back.
    """
    shards, expert_shards = sizes.shards(inputs)
    is_sharded = inputs.zero >= 1
    owned = inputs.trained * sizes.dense_parameters(inputs) / np.where(is_sharded, shards, 1.0)
    owned_experts = inputs.trained_experts * sizes.expert_parameters(inputs)
    owned = owned + owned_experts / np.where(is_sharded, expert_shards, 1.0)
    moved_bytes = inputs.update_bytes * owned
    on_gpu = moved_bytes / inputs.memory_rate * constants.update
    on_gpu = on_gpu + inputs.update_operations * owned / (inputs.half_peak * constants.matmul)
    if not np.any(inputs.offload):
        return on_gpu
    transfers = (inputs.gradient_bytes + 2.0) * owned / inputs.host_link
    on_host = transfers + moved_bytes / inputs.host_memory * constants.update
    return np.where(inputs.offload > 0, on_host, on_gpu)
