"""Matrix multiplications run without tensor cores, at a fraction of the GPU's rate.

What it means
    The kernels of matrix multiplications and convolutions have no tensor-core instructions: fp32 with TF32 turned off.

Why it costs
    Tensor cores compute TF32 several times, and bf16 or fp16 up to fifteen times, as fast as the ordinary cores compute
    fp32.

Evidence
    Seconds per step in such kernels, their names, and the peak rates of this GPU: the vendor's, or those that `flatout
    bench` measured (`peaks_from`). The estimated speedup is half the ratio of the peaks, limited to a factor of eight.

Change to try
    Set `torch.set_float32_matmul_precision("high")` (TF32), or use `torch.autocast` with bf16 or fp16.

When this is wrong
    The job may need full fp32 precision. GPUs without tensor cores are not judged, nor are AMD's matrix cores, which
    also compute fp32. Small matrix multiplications may be memory-bound and gain less.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flatout.catalog.gpus import gpu_facts
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import finding, share_words
from flatout.records.diagnosis import Finding, Part
from flatout.units import seconds

CODE = "F10"
NAME = "no-tensor-cores"
UNKNOWN_GPU_SPEEDUP = 2.0
MAX_SPEEDUP = 8.0


def find(context: DiagnosisContext) -> list[Finding]:
    plain = [context.per_step(context.facts(t.rank).plain_matmul_s) for t in context.ranks]
    total = [context.per_step(context.facts(t.rank).matmul_s) for t in context.ranks]
    if not plain or max(plain) <= 0:
        return []
    device = next((t.meta.device_name for t in context.ranks if t.meta.device_name), None)
    speedup, dtype, peaks = _speedup(device, context.measured_peaks)
    if speedup is None:
        return []
    plain_s = float(np.mean(plain))
    cost = context.claim(Part.COMPUTE, plain_s * (1 - 1 / speedup))
    ranks = tuple(t.rank for t, s in zip(context.ranks, plain, strict=True) if s >= 0.5 * max(plain))
    worst = int(np.argmax(plain))
    names = context.facts(context.ranks[worst].rank).plain_matmul_names
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"matrix multiplications run without tensor cores: {seconds(plain_s)} {context.period}"
            f" ({share_words(context, plain_s)}), which {dtype} would reduce to about {seconds(plain_s / speedup)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "plain_matmul_s": plain_s,
            "all_matmul_s": float(np.mean(total)),
            "assumed_speedup": speedup,
            "peak_flops_per_s": peaks,
            "peaks_from": None if peaks is None else "measured" if context.measured_peaks else "vendor",
            "kernels": [name[:120] for name in names],
        },
        changes=_changes(dtype),
        safety="rounding",
        confidence="high" if peaks else "medium",
    )


def _changes(dtype: str) -> tuple[str, ...]:
    """Return the changes that use tensor cores; `dtype` is the most precise type that these cores support."""
    tf32 = 'torch.set_float32_matmul_precision("high") (TF32)'
    half = "torch.autocast with float16 and a GradScaler"
    brain = "torch.autocast with bfloat16"
    return {"TF32": (tf32, brain), "bf16": (brain,)}.get(dtype, (half,))


def _speedup(
    device: str | None, measured: Mapping[str, float] | None
) -> tuple[float | None, str, dict[str, float] | None]:
    """Return the assumed speedup on this GPU, the most precise type that gives it, and the peaks.

    The speedup is None without tensor cores.
    """
    facts = gpu_facts(device) if device else None
    peaks = measured or (None if facts is None else facts.peak_flops_per_s)
    if peaks is None:
        return UNKNOWN_GPU_SPEEDUP, "TF32", None
    plain = peaks.get("fp32")
    dtype = next((name for name in ("tf32", "bf16", "fp16") if name in peaks), None)
    if not plain or dtype is None or peaks[dtype] <= plain:
        return None, "", None
    word = {"tf32": "TF32"}.get(dtype, dtype)
    return min(max(0.5 * peaks[dtype] / plain, 1.5), MAX_SPEEDUP), word, {"fp32": plain, dtype: peaks[dtype]}
