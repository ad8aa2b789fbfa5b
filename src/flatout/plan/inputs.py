"""The inputs of the cost model: workload, machine, software and layout as numbers or columns of numbers.

Each field is a scalar or an array, and all arrays have the same length. A search has one workload and many layouts, an
evaluation has a different workload in every row; the same vectorized code handles both in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flatout.plan import counts
from flatout.plan.layer_means import layer_means
from flatout.plan.tower_work import tower_columns
from flatout.plan.training import training_columns
from flatout.records.plan import FULL_TRAINING, ClusterSpec, Layout, Software, Training, Workload

Column = Any  # a float, or a float64 array
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModelInputs:
    """The inputs of one or many trainings.

    Widths are in elements, rates per second, shares from 0 to 1; booleans are 0 or 1.
    """

    # workload
    layers: Column
    hidden: Column
    qkv_width: Column  # columns of the QKV projection, or of all of latent attention's projections together
    out_width: Column
    score_width: Column  # mean of all heads' query and value elements
    windowed: Column  # share of the scores that the layers' windows leave
    recurrence: Column  # multiply-adds per token of recurrences, which do not depend on the sequence
    heads: Column
    head_dim: Column
    kv_width: Column  # elements of one token's keys and values
    ffn: Column
    ffn_matrices: Column
    vocab: Column
    tied: Column
    causal: Column
    experts: Column
    topk: Column
    expert_ffn: Column
    shared_ffn: Column
    moe_layers: Column
    other_parameters: Column  # of one layer, in no matrix: norms, biases, convolutions
    outside_parameters: Column  # of what is in no layer and no table of the vocabulary: positions, towers
    tower_work: Column  # multiply-adds of the towers' forward for one sequence
    tower_trained_work: Column  # of those towers that are trained
    tower_kept: Column  # positions times width over their layers, for one sequence
    seq: Column
    attended: Column  # tokens that each token attends to: the sequence, or with packing, the document
    # what is trained, and by which optimizer
    trained: Column  # trained parameters per dense parameter of the model: 1, or with adapters their share
    trained_experts: Column  # trained parameters per parameter of the routed experts
    adapters: Column  # 1: what is trained is additional (LoRA), and the complete model is frozen
    frozen_bytes: Column  # of one frozen weight in memory; 0: as many as in computations
    has_master_weights: Column  # 1: the optimizer keeps fp32 copies of what is trained
    optimizer_bytes: Column  # master weight and optimizer states per trained parameter
    update_bytes: Column  # read and written per trained parameter in one update
    update_operations: Column  # per trained parameter in one update, in matrix multiplications
    # machine
    gpus: Column
    matmul_peak: Column  # peak for linear layers times the share of it that was measured to be reachable
    half_peak: Column  # the same for 16-bit matmuls: attention and logits
    balance: Column  # peak operations per byte of memory traffic, for linear layers
    half_balance: Column
    memory_rate: Column
    sms: Column
    memory: Column
    link: Column
    nic: Column
    core: Column  # share of the adapters' rate that the network's core carries
    pod: Column  # GPUs that reach each other without the network's core
    rail_pod: Column  # the same for GPUs on one rail
    # Nodes in each dimension of a ring or torus, the fastest last; 1: not used; all 1: a network with switches.
    torus_x: Column
    torus_y: Column
    torus_z: Column
    node_gpus: Column
    network_latency: Column
    host_link: Column
    host_memory: Column
    domain: Column
    head_power: Column  # exponent of 128 / head size: the slowdown of late attention on smaller heads
    is_measured: Column  # the reachable share of its peaks was measured, or is a near relative's
    after_ampere: Column  # Hopper and later, whose asynchronous matrix units are half idle under older kernels
    # precision
    element_bytes: Column  # size of weights and activations in computations
    is_low: Column  # fp8 or fp4, which need casts before each matmul
    # software
    is_known: Column
    fused: Column
    overlaps_dp: Column
    overlaps_pp: Column
    overlaps_tp: Column
    early_experts: Column
    overlaps_ep: Column
    graphs: Column
    lacks_graphs: Column
    blocking: Column
    late_attention: Column
    first_flash: Column
    scatters: Column
    eager: Column
    gathers: Column
    gather_copies: Column
    gathers_again: Column
    gradient_bytes: Column
    held_gradient_bytes: Column
    selective_share: Column
    selects_modules: Column
    keeps_low: Column
    optimizer_share: Column
    reserves: Column
    logits_bytes: Column
    buffer_bytes: Column
    # layout
    tp: Column
    sp: Column
    pp: Column
    vpp: Column
    cp: Column
    ep: Column
    etp: Column
    dp: Column
    zero: Column
    shard: Column
    offload: Column
    micro_batch: Column
    num_micro: Column
    selective: Column
    full: Column
    zero_bubble: Column
    gpipe: Column
    # The heaviest pipeline stage, relative to as many mean layers: 1 if all layers are alike (`plan/stages.py`).
    stage_time: Column = 1.0  # of all stages but the last
    last_stage_time: Column = 1.0
    stage_parameters: Column = 1.0  # without routed experts
    stage_experts: Column = 1.0
    stage_kept: Column = 1.0  # activations of the stage that needs the most memory
    last_stage_kept: Column = 1.0
    # Whether that stage is the first one, with the embedding and towers, and whether it is the last one, with the
    # logits. If all layers are alike, the rank that counts has the states of one and the activations of either.
    is_first_stage: Column = 1.0
    is_last_stage: Column = 1.0


FIELDS = tuple(field.name for field in fields(CostModelInputs))


def workload_columns(
    workload: Workload, seq: int, document: int = 0, training: Training = FULL_TRAINING, images: int = 0
) -> dict[str, float]:
    """Return the workload's part of the inputs.

    `document`: tokens per document if several documents are packed into a sequence. `images`: images per sequence.
    """
    means = layer_means(workload)
    attended = min(document, seq) or seq
    return {
        "layers": workload.num_layers,
        "hidden": workload.hidden,
        "qkv_width": means.in_weights / workload.hidden,
        "out_width": means.out_weights / workload.hidden,
        "score_width": means.score_width / 2,
        "windowed": means.windowed(attended),
        "recurrence": means.recurrence,
        "heads": workload.num_heads,
        "head_dim": workload.head_dim,
        "kv_width": means.kv_width,
        "ffn": means.dense_width,
        "ffn_matrices": counts.matrices_per_ffn(workload),
        "vocab": workload.vocab,
        "tied": workload.is_tied,
        "causal": workload.is_causal,
        "experts": workload.num_experts,
        "topk": workload.experts_per_token,
        "expert_ffn": means.expert_width,
        "shared_ffn": means.shared_width,
        "moe_layers": workload.num_moe_layers,
        "other_parameters": means.other_parameters,
        "outside_parameters": counts.outside_parameters(workload),
        "seq": seq,
        "attended": attended,
        **training_columns(workload, training),
        **tower_columns(workload, images, training),
    }


# Operand type of the linear layers -> type whose peak applies, bytes per weight in compute, whether casts are needed.
PRECISIONS = {
    "fp32": ("fp32", 4.0, False),
    "fp16": ("fp16", 2.0, False),
    "bf16": ("bf16", 2.0, False),
    "fp8": ("fp8", 2.0, True),
    # With one scale per row, torchao keeps the weight gradient's matmul in 16 bits and casts for the other two.
    "fp8-rowwise": ("bf16", 2.0, True),
    "fp4": ("fp4", 2.0, True),
}
# Share for types without a measured reachable share: the mean of the measured ones (catalog/systems.toml).
ASSUMED_SHARE = {"fp32": 0.85, "fp16": 0.8, "bf16": 0.75, "fp8": 0.72, "fp4": 0.6}


# Assumed share of an adapter's rate, and multiple of InfiniBand's latency, of an untuned network. Plain Ethernet uses
# the kernel's TCP stack.
NETWORKS = {"infiniband": (1.0, 1.0), "roce": (0.95, 1.3), "ethernet": (0.6, 5.0)}


def machine_columns(cluster: ClusterSpec, precision: str, matmul_share: dict[str, float]) -> dict[str, float]:
    """Return the machine's and the precision's part of the inputs.

    A GPU that does not support the precision's type computes in 16 bits.
    """
    peaks = cluster.peak_flops_per_s
    half_type = _half_type(precision, peaks)
    peak_type, element_bytes, is_low = PRECISIONS[precision]
    if peak_type not in peaks:
        peak_type, is_low = half_type, False
    share = {**ASSUMED_SHARE, **matmul_share}
    pod = cluster.pod_gpus or cluster.gpus_per_node
    rail_pod = pod * cluster.gpus_per_node if cluster.is_rail_optimized else pod
    network_share, network_latency = NETWORKS[cluster.network]
    return {
        "gpus": cluster.num_gpus,
        "matmul_peak": peaks[peak_type] * share[peak_type],
        "half_peak": peaks[half_type] * share[half_type],
        "balance": peaks[peak_type] / cluster.memory_bytes_per_s,
        "half_balance": peaks[half_type] / cluster.memory_bytes_per_s,
        "memory_rate": cluster.memory_bytes_per_s,
        "sms": cluster.num_sms,
        "memory": cluster.memory_bytes,
        "link": cluster.link_bytes_per_s,
        "nic": cluster.nic_bytes_per_s * network_share,
        "core": 1.0 / cluster.oversubscription,
        "pod": pod,
        "rail_pod": rail_pod,
        **_torus_columns(cluster),
        "network_latency": network_latency,
        "host_link": cluster.host_link_bytes_per_s,
        "host_memory": cluster.host_memory_bytes_per_s,
        "domain": cluster.nvlink_domain,
        "is_measured": half_type in matmul_share,
        "after_ampere": "fp8" in peaks,
        # A score's exponential costs the same for any head size. On Hopper, half of this cost is exposed (arXiv
        # 2407.08608, figure 5); Blackwell has twice the matrix rate but as many units for exponentials.
        "head_power": 1.0 if "fp4" in peaks else 0.6,
        "element_bytes": element_bytes,
        "is_low": is_low,
    }


def _torus_columns(cluster: ClusterSpec) -> dict[str, float]:
    shape = (1, 1, 1, *cluster.torus)[-3:]
    return {**dict(zip(("torus_x", "torus_y", "torus_z"), shape, strict=True)), "node_gpus": cluster.gpus_per_node}


def _half_type(precision: str, peaks: dict[str, float]) -> str:
    """Return the operand type of attention and logits."""
    if precision == "fp32":
        return "fp32"
    has_bf16 = "bf16" in peaks and precision != "fp16"
    return "bf16" if has_bf16 else "fp16"


def software_columns(software: Software) -> dict[str, float]:
    """Return the software's part of the inputs."""
    return {
        "is_known": software.is_known,
        "fused": software.fused_attention,
        "overlaps_dp": software.overlaps_dp,
        "overlaps_pp": software.overlaps_pp,
        "overlaps_tp": software.overlaps_tp,
        "early_experts": software.has_early_experts,
        "overlaps_ep": software.overlaps_ep,
        "graphs": software.uses_graphs,
        "lacks_graphs": software.lacks_graphs,
        "blocking": software.is_blocking,
        "late_attention": software.has_late_attention,
        "first_flash": software.has_first_flash,
        "scatters": software.scatters_sends,
        "eager": software.is_eager,
        "gathers": software.gathers_per_layer,
        "gather_copies": software.gather_copies,
        "gathers_again": software.gathers_again,
        "gradient_bytes": software.gradient_bytes,
        "held_gradient_bytes": software.held_gradient_bytes,
        "selective_share": software.selective_share,
        "selects_modules": software.selects_modules,
        "keeps_low": software.keeps_low,
        "optimizer_share": software.optimizer_share,
        "reserves": software.reserves_pipeline,
        "logits_bytes": software.logits_bytes,
        "buffer_bytes": software.buffer_bytes,
    }


ALIKE = dict.fromkeys(
    (
        *("stage_time", "last_stage_time", "stage_parameters", "stage_experts"),
        *("stage_kept", "last_stage_kept", "is_first_stage", "is_last_stage"),
    ),
    1.0,
)


def layout_columns(layout: Layout) -> dict[str, float]:
    """Return the layout's part of the inputs."""
    return {
        "tp": layout.tp,
        "sp": layout.sequence_parallel,
        "pp": layout.pp,
        "vpp": layout.vpp,
        "cp": layout.cp,
        "ep": layout.ep,
        "etp": layout.etp,
        "dp": layout.dp,
        "zero": layout.zero,
        "shard": layout.shard,
        "offload": layout.offload,
        "micro_batch": layout.micro_batch,
        "num_micro": layout.num_micro_batches,
        "selective": layout.recompute == "selective",
        "full": layout.recompute == "full",
        "zero_bubble": layout.schedule == "zero-bubble",
        "gpipe": layout.schedule == "gpipe",
        **ALIKE,
    }


def stacked(rows: Sequence[dict[str, float]]) -> CostModelInputs:
    """Return the inputs with the given rows stacked into columns."""
    return CostModelInputs(**{name: np.array([row[name] for row in rows], dtype=np.float64) for name in FIELDS})
