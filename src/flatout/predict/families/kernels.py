"""Other kernels: durations times a ratio by kind, and fewer launches if kernels are fused.

A trace cannot show the speed of kernels that it does not have, so all ratios here are priors with wide intervals.
"""

from __future__ import annotations

import numpy as np

from flatout.predict.replay import Edits
from flatout.predict.situation import Scenarios, Situation, scale
from flatout.records.change import Change
from flatout.records.track import GpuWorkKind, Spent


def _ratios(
    situation: Situation,
    ratios: dict[GpuWorkKind, float],
    *,
    worst: float,
    best: float,
    how: str,
    assumption: str,
    host: float = 1.0,
) -> Scenarios | str:
    """Multiply kernels of each kind by its ratio to the power of the uncertain factor: 0: no gain, 1: likely gain."""
    rows = {kind: situation.works(kind) for kind in ratios}
    if not sum(len(r) for found in rows.values() for r in found.values()):
        return "the trace has no GPU kernel that it works on"

    def apply(edits: Edits, factor: float) -> None:
        for kind, ratio in ratios.items():
            for rank, mine in rows[kind].items():
                in_optimizer = situation.tracks[rank].phase[mine] == Spent.OPTIMIZER
                scale(edits, rank, mine, np.where(in_optimizer, 1.0, ratio**factor))
        for edit in edits.values():
            edit.spent_ns[:, [Spent.HOST, Spent.ACCUMULATE]] *= host**factor

    return Scenarios(apply=apply, likely=1.0, worst=worst, best=best, how=how, assumptions=(assumption,))


def tf32(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.PLAIN_MATMUL: 0.2},
        worst=0.4,
        best=1.3,
        how="fp32 matrix multiplications run on tensor cores",
        assumption="a prior: on H100 TF32 has 7 times the rate of fp32, of which a part is reached",
    )


def autocast(situation: Situation, change: Change) -> Scenarios | str:
    del change
    has_plain = any(len(rows) for rows in situation.works(GpuWorkKind.PLAIN_MATMUL).values())
    return _ratios(
        situation,
        {GpuWorkKind.PLAIN_MATMUL: 0.12, GpuWorkKind.MATMUL: 1.0 if has_plain else 0.55, GpuWorkKind.OTHER: 0.85},
        worst=0.3,
        best=1.3,
        how="matrix multiplications run in bf16, other kernels move fewer bytes",
        assumption="a prior: bf16 has 15 times the rate of fp32 on H100 and twice that of TF32; casts take time",
        host=1.1,
    )


def compile_(situation: Situation, change: Change) -> Scenarios | str:
    graphs = change.value == "reduce-overhead"
    return _ratios(
        situation,
        {GpuWorkKind.OTHER: 0.6, GpuWorkKind.COPY_ON_DEVICE: 0.8, GpuWorkKind.SET: 0.5},
        worst=0.1,
        best=1.8,
        how="kernels between matrix multiplications are fused, and the host launches fewer",
        assumption="a prior: torchtitan reports 1.16 times the tokens on 8 H100",
        host=0.3 if graphs else 0.65,
    )


def channels_last(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.OTHER: 0.9, GpuWorkKind.MATMUL: 0.95, GpuWorkKind.PLAIN_MATMUL: 0.97},
        worst=-0.5,
        best=4.0,
        how="transposes around convolutions are gone",
        assumption="a prior: it helps with half precision, and can hurt without it",
    )


def cudnn_benchmark(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.MATMUL: 0.95, GpuWorkKind.PLAIN_MATMUL: 0.93},
        worst=-0.2,
        best=4.0,
        how="convolutions run with the fastest algorithm",
        assumption="a prior: cuDNN's own choice is usually right",
    )


def fused_attention(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.OTHER: 0.8},
        worst=-0.2,
        best=3.0,
        how="attention never writes its scores",
        assumption="a prior: the trace does not show which kernels belong to attention",
    )


def fp16(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.PLAIN_MATMUL: 0.2, GpuWorkKind.OTHER: 0.9},
        worst=0.2,
        best=1.3,
        how="matrix multiplications run in fp16, other kernels move fewer bytes",
        assumption="a prior: fp16 has 8 times the rate of fp32 on V100; casts and scaled gradients take time",
        host=1.2,
    )


def fp8(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.MATMUL: 0.7},
        worst=-0.5,
        best=1.4,
        how="matrices of linear layers are multiplied in fp8",
        assumption="a prior: fp8 has twice the rate of bf16, and casts take a part of it",
        host=1.2,
    )


def liger(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.OTHER: 0.7},
        worst=0.0,
        best=1.6,
        how="norms, rotary positions, activations and the loss are fused kernels",
        assumption="a prior: the authors report 1.2 times the tokens of a 8 B model",
        host=0.9,
    )


def xformers(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _ratios(
        situation,
        {GpuWorkKind.OTHER: 0.9},
        worst=-0.5,
        best=3.0,
        how="attention never writes its scores",
        assumption="a prior: the trace does not show which kernels belong to attention",
    )


MODELS = {
    "autocast-fp16": fp16,
    "fp8": fp8,
    "liger-kernels": liger,
    "xformers-attention": xformers,
    "tf32": tf32,
    "autocast": autocast,
    "compile": compile_,
    "channels-last": channels_last,
    "cudnn-benchmark": cudnn_benchmark,
    "fused-attention": fused_attention,
}
