"""Advice for jobs of JAX and TensorFlow: what to change there, where a rule's own advice is for PyTorch.

In: findings, and the formats of the traces that they come from. Out: the findings with the changes that XLA's users can
make. A finding that is not listed keeps its advice, which then holds for any framework.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.diagnosis import Finding
from flatout.records.events import TraceFormat
from flatout.records.timeline import RankTimeline

_XLA_FORMATS = frozenset({TraceFormat.XPLANE, TraceFormat.JAX_TRACE})
_LATENCY_HIDING = "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true"
_CHANGES: dict[str, tuple[str, ...]] = {
    "data-loading": (
        "prepare batches in other processes or threads: grain's worker_count, or tf.data's prefetch and parallel map",
        "put the next batch on the device while this one is computed: ask for it before waiting for the step",
        "cheaper decoding or augmentation, data on faster storage",
    ),
    "host-bound": (
        "bind each process to enough cores near its device",
        "larger jitted functions: one call per step, with the optimizer inside",
        "jax.lax.scan over several steps per call",
        "a larger batch (semantic)",
    ),
    "host-sync": (
        "fetch the loss every N steps instead of every step, and only of a step that has ended",
        "keep values on the device: no float(), .item() or np.asarray() in the loop",
    ),
    "small-kernels": ("larger jitted functions, so that XLA fuses more", "XLA_FLAGS=--xla_gpu_enable_command_buffer="),
    "exposed-communication": (
        _LATENCY_HIDING,
        "XLA_FLAGS=--xla_gpu_all_reduce_combine_threshold_bytes=N: fewer, larger collectives",
        "fewer bytes: reduce gradients in bf16 (rounding)",
    ),
    "exposed-all-gather": (
        _LATENCY_HIDING,
        "XLA_FLAGS=--xla_gpu_all_gather_combine_threshold_bytes=N: fewer, larger collectives",
        "shard parameters over fewer devices, or replicate the small ones",
    ),
    "redundant-gradient-sync": (
        "accumulate gradients within the jitted function, and reduce them once per optimizer step",
    ),
    "checkpoint-stall": (
        "orbax's AsyncCheckpointer: copy to the host, and write in the background",
        "save less often",
    ),
    "no-tensor-cores": ("compute in bfloat16 (rounding)", "jax.default_matmul_precision('tensorfloat32') (rounding)"),
    "allocator-churn": ("XLA_PYTHON_CLIENT_PREALLOCATE=true", "donate buffers that a step replaces: donate_argnums"),
    "memory-copy": (
        "keep data on the device between calls; donate_argnums for buffers that a step replaces",
        "put the next batch on the device while this one is computed",
    ),
}


def with_xla_advice(findings: Sequence[Finding], timelines: Sequence[RankTimeline]) -> list[Finding]:
    """Return the findings, with advice for XLA where all traces come from it."""
    formats = {timeline.meta.format for timeline in timelines}
    if not formats or not formats <= _XLA_FORMATS:
        return list(findings)
    return [
        msgspec.structs.replace(finding, changes=_CHANGES.get(finding.name, finding.changes)) for finding in findings
    ]
