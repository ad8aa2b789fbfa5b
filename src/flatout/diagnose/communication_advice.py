"""The changes to try for exposed communication, by what it carries and what distributes the model.

In: the traffic of a job, its wrapper, and the bandwidth of its large messages. Out: texts, the likeliest fix first:
- small messages show the latency of each message, so fewer and larger ones come first;
- large messages at a low rate show a slow transport, so that comes first;
- large messages at a good rate show a lack of overlap, so earlier or hidden messages come first.
No advice names a setting of a wrapper that the job does not use.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.diagnose.traffic import Traffic, TrafficKind, Wrapper

SLOW_BYTES_PER_S = 10e9  # bus bandwidth; TCP sockets reach a few GB/s, a good network tens, NVLink hundreds
MIN_OTHER_SHARE = 0.25  # share of the exposed time of the most exposed kind; below it, no advice is given

_ON_GPU = (
    "check which transport is used: NCCL_DEBUG=INFO (TCP sockets instead of NVLink or InfiniBand?)",
    "the transport's own settings, e.g. NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD, NCCL_MIN_NCHANNELS",
)
_ON_CPU = ("check which network interface is used: GLOO_SOCKET_IFNAME",)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The changes for one kind of traffic, by their effect on it."""

    group: tuple[str, ...] = ()  # fewer, larger messages
    overlap: tuple[str, ...] = ()  # messages behind compute
    reduce: tuple[str, ...] = ()  # fewer bytes over the slow links
    inexact: tuple[str, ...] = ()  # changes to the computation: rounding or semantic


_DDP_GRADIENTS = Advice(
    group=("larger gradient buckets: DistributedDataParallel(bucket_cap_mb=...)",),
    inexact=("fewer bytes: a bf16 compression hook (rounding)",),
)
_OWN_GRADIENTS = Advice(
    group=("reduce gradients in fewer, larger pieces, e.g. in buckets",),
    inexact=("fewer bytes: reduce gradients in bf16 (rounding)",),
)
_FSDP_WEIGHTS = Advice(
    group=("larger shards: wrap fewer, larger units, so that each gather moves more bytes",),
    overlap=(
        "prefetch: set_modules_to_forward_prefetch, set_modules_to_backward_prefetch",
        "fully_shard(..., reshard_after_forward=False) where memory allows",
    ),
    reduce=("shard within a node only (HSDP)",),
    inexact=("fewer bytes: MixedPrecisionPolicy(param_dtype=torch.bfloat16) (rounding)",),
)
_FSDP_GRADIENTS = Advice(
    group=("larger shards: wrap fewer, larger units, so that each reduce-scatter moves more bytes",),
    overlap=("with accumulation, set_requires_gradient_sync(False) until the last pass (needs memory)",),
    reduce=("shard within a node only (HSDP)",),
    inexact=("fewer bytes: MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) (rounding)",),
)
_ZERO_WEIGHTS = Advice(
    group=(
        "keep small parameters whole: a larger stage3_param_persistence_threshold",
        "gather more parameters at once: a larger stage3_prefetch_bucket_size",
    ),
    overlap=(
        "prefetch: overlap_comm=true, a larger stage3_prefetch_bucket_size and stage3_max_live_parameters",
        "ZeRO stage 2 instead of 3 where memory allows: weights are not gathered layer by layer",
    ),
    reduce=("a second copy of the shards within each node: zero_hpz_partition_size",),
    inexact=("fewer bytes: zero_quantized_weights (rounding)",),
)
_ZERO_UPDATES = Advice(
    group=("a larger allgather_bucket_size",),
    overlap=("overlap_comm=true",),
    reduce=("shard the optimizer within a node only",),
)
_ZERO_GRADIENTS = Advice(
    group=("a larger reduce_bucket_size",),
    overlap=("overlap_comm=true and contiguous_gradients=true",),
    inexact=("fewer bytes: communication_data_type bf16 (rounding)",),
)
# All-gathers with reduce-scatters, and no name of a wrapper: FSDP or ZeRO-3, whose settings are named both.
_SHARD_WEIGHTS = Advice(
    group=(
        "larger shards, fewer gathers: wrap larger units (FSDP), or raise stage3_prefetch_bucket_size and"
        " stage3_param_persistence_threshold (ZeRO-3)",
    ),
    overlap=(
        "prefetch the next layer's weights: set_modules_to_forward_prefetch (FSDP), stage3_prefetch_bucket_size with"
        " overlap_comm (ZeRO-3)",
        "keep the weights gathered from forward to backward where memory allows: reshard_after_forward=False (FSDP)",
    ),
    reduce=("shard within a node only, and replicate between nodes (HSDP, zero_hpz_partition_size)",),
)
_SHARD_GRADIENTS = Advice(
    group=("larger shards, fewer reduce-scatters: wrap larger units (FSDP), or raise reduce_bucket_size (ZeRO)",),
    overlap=("reduce a layer's gradients during the backward pass of the layer before it: overlap_comm (ZeRO)",),
    reduce=("shard within a node only, and replicate between nodes (HSDP)",),
)
_ACTIVATIONS = Advice(
    inexact=("larger micro-batches: each sum moves more bytes (semantic unless the global batch is kept)",),
    overlap=("split each sum and hide it behind the matrix multiplications: async tensor parallelism",),
    reduce=("a smaller tensor-parallel group, within the GPUs that NVLink connects",),
)
_EXPERT_TOKENS = Advice(
    overlap=("hide dispatch and combine behind the shared expert or another micro-batch",),
    reduce=("a smaller expert-parallel group, within the GPUs that NVLink connects",),
    inexact=(
        "larger micro-batches: each all-to-all moves more bytes (semantic unless the global batch is kept)",
        "fewer bytes: dispatch tokens in fp8 (rounding), or a lower capacity factor (semantic)",
    ),
)
_PIPELINE = Advice(
    overlap=("send activations while the next micro-batch computes: overlap_p2p_comm, or batched isend/irecv",),
    reduce=("fewer pipeline stages",),
)
_BROADCAST = Advice(
    reduce=(
        "let each rank read its own part of the data: accelerate dispatch_batches=False",
        "do not send buffers in each forward pass: broadcast_buffers=False, if no buffer changes",
    ),
)
_OTHER = Advice(group=("fewer, larger collectives",), overlap=("launch the collectives earlier",))

_BY_WRAPPER: dict[tuple[Wrapper | None, TrafficKind], Advice] = {
    (Wrapper.DDP, TrafficKind.GRADIENTS): _DDP_GRADIENTS,
    (Wrapper.FSDP, TrafficKind.WEIGHT_SHARDS): _FSDP_WEIGHTS,
    (Wrapper.FSDP, TrafficKind.GRADIENT_SHARDS): _FSDP_GRADIENTS,
    (Wrapper.FSDP, TrafficKind.GRADIENTS): _FSDP_GRADIENTS,
    (Wrapper.DEEPSPEED, TrafficKind.WEIGHT_SHARDS): _ZERO_WEIGHTS,
    (Wrapper.DEEPSPEED, TrafficKind.UPDATED_WEIGHTS): _ZERO_UPDATES,
    (Wrapper.DEEPSPEED, TrafficKind.GRADIENT_SHARDS): _ZERO_GRADIENTS,
    (Wrapper.DEEPSPEED, TrafficKind.GRADIENTS): _ZERO_GRADIENTS,
}
_BY_KIND: dict[TrafficKind, Advice] = {
    TrafficKind.GRADIENTS: _OWN_GRADIENTS,
    TrafficKind.WEIGHT_SHARDS: _SHARD_WEIGHTS,
    TrafficKind.GRADIENT_SHARDS: _SHARD_GRADIENTS,
    TrafficKind.ACTIVATIONS: _ACTIVATIONS,
    TrafficKind.EXPERT_TOKENS: _EXPERT_TOKENS,
    TrafficKind.PIPELINE: _PIPELINE,
    TrafficKind.BROADCAST: _BROADCAST,
}


def advice(
    traffic: Sequence[Traffic], wrapper: Wrapper | None, *, bandwidth: float | None, has_gpu: bool
) -> tuple[str, ...]:
    """Return the changes to try, likeliest first. `bandwidth`: bus bandwidth of large messages, None if unknown."""
    transport = _ON_GPU if has_gpu else _ON_CPU
    most = traffic[0].exposed_s if traffic else 0.0
    lines: list[str] = []
    inexact: list[str] = []
    for each in traffic:
        if each.exposed_s < MIN_OTHER_SHARE * most:
            continue
        of_kind = advice_for(each.kind, wrapper)
        inexact += of_kind.inexact
        if each.is_small:
            lines += [*of_kind.group, *of_kind.overlap, *of_kind.reduce]
        elif bandwidth is not None and bandwidth >= SLOW_BYTES_PER_S:
            lines += [*of_kind.overlap, *of_kind.group, *of_kind.reduce]
        else:
            lines += [*transport, *of_kind.reduce, *of_kind.overlap, *of_kind.group]
    lines += transport
    # A finding's safety is that of its first change: changes to the computation come last.
    return tuple(dict.fromkeys((*lines, *inexact)))


def advice_for(kind: TrafficKind, wrapper: Wrapper | None) -> Advice:
    return _BY_WRAPPER.get((wrapper, kind)) or _BY_KIND.get(kind, _OTHER)
