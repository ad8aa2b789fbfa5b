"""The nouns of planning: what is trained, where, in which layout, and what is predicted of it."""

from __future__ import annotations

import msgspec

from flatout.records.goal import GoalAnswer


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A transformer, as far as time and memory depend on it. Widths are numbers of elements."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int  # width of a dense layer's feed-forward network; 0 where no layer is dense
    is_gated: bool  # SwiGLU and its like: three matrices a feed-forward network instead of two
    vocab: int
    is_tied: bool  # the logits use the embedding's matrix
    has_bias: bool = False  # of the linear layers and norms, as GPT-3, BERT and ViT have them
    has_qkv_bias: bool = False  # of the query, key and value projections only (Qwen 2)
    has_qk_norm: bool = False  # a norm on each head's queries and keys (Qwen 3)
    is_causal: bool = True
    max_positions: int = 0  # rows of a learned position table; 0 without one
    num_token_types: int = 0  # BERT's segment embeddings
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # width of the experts that see every token
    num_moe_layers: int = 0
    q_rank: int = 0  # latent attention (DeepSeek): low ranks of queries and of keys with values; 0 without
    kv_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0  # of a head; 0: head_dim
    patch_inputs: int = 0  # ViT: values of one patch, which a linear layer embeds in place of a vocabulary
    num_classes: int = 0  # ViT: outputs of the head
    source: str = ""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one kind. Rates are of one direction."""

    name: str
    gpu: str  # name in the catalogue
    num_gpus: int
    gpus_per_node: int
    nvlink_domain: int  # GPUs that reach each other at `link_bytes_per_s`
    link_bytes_per_s: float  # of one GPU
    nic_bytes_per_s: float  # of one GPU: the node's adapters, shared by its GPUs
    memory_bytes: int  # of one GPU
    memory_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    num_sms: int
    oversubscription: float = 1.0  # of the network's core: 2 means half the rate between distant nodes
    pod_gpus: int = 0  # GPUs that reach each other without the core; 0: those of one node
    is_rail_optimized: bool = False  # GPUs of the same place in their nodes share a switch
    network: str = "infiniband"  # or roce, ethernet
    host_link_bytes_per_s: float = 25e9  # of one GPU to its host's memory
    host_memory_bytes_per_s: float = 50e9  # of the host, for each of its GPUs
    origin: str = "vendor"  # vendor, measured or typed


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is spread over its GPUs. `tp * pp * cp * dp` is the number of GPUs; experts live on `ep` of `tp * cp
    * dp`.
    """

    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    vpp: int = 1  # model chunks of one pipeline rank (interleaved schedule)
    cp: int = 1
    ep: int = 1
    dp: int = 1
    zero: int = 0  # 0: replicated, 1: optimizer, 2: and gradients, 3: and parameters (FSDP)
    shard: int = 0  # ranks over which ZeRO shards, each such group with copies of all (HSDP); 0: all replicas
    offload: bool = False  # optimizer states and their update in the host's memory (ZeRO-Offload)
    micro_batch: int = 1
    num_micro_batches: int = 1  # a step and replica: accumulation
    recompute: str = "none"  # none, selective, full
    schedule: str = "1f1b"  # gpipe, 1f1b, zero-bubble


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """What the training software does in a step. The defaults are those of current Megatron-Core and FSDP2."""

    fused_attention: bool = True  # FlashAttention or cuDNN; otherwise the scores are written to memory
    overlaps_dp: bool = True  # gradients are reduced during the backward pass
    overlaps_pp: bool = True  # interleaved sends and receives run alongside compute
    has_late_attention: bool = True  # cuDNN's or FlashAttention 3, written for the GPU; otherwise FlashAttention 2
    has_first_flash: bool = False  # FlashAttention 1
    scatters_sends: bool = True  # a tensor-parallel group sends each value once (arXiv 2104.04473, 4.1)
    # Matrix multiplications and their collectives are cut into pieces that run side by side: 1 for NVIDIA's kernels,
    # 0.5 for torch's.
    overlaps_tp: float = 0.0
    overlaps_ep: bool = False  # one micro-batch's dispatch runs alongside another's compute
    uses_graphs: bool = False  # the whole step is one CUDA graph: the host launches nothing
    is_blocking: bool = False  # CUDA_LAUNCH_BLOCKING=1: the host waits for each kernel before the next
    is_eager: bool = False  # elementwise operators are separate kernels: no compiler, no fused ones
    gathers_per_layer: float = 1.0  # with ZeRO 3: FSDP gathers a layer at once, DeepSpeed each parameter
    gather_copies: float = 1.0  # of gathered data: 2 where it comes as a list of pieces, which are copied together
    gathers_again: bool = False  # once more for the recomputation, rather than once for it and the backward pass
    gradient_bytes: float = 4.0  # size of one gradient as it is accumulated and reduced
    held_gradient_bytes: float = 4.0  # size of one gradient in memory, with its copies
    selective_share: float = 0.0  # of a layer's matrix multiplications that `recompute = "selective"` repeats


class PlannedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout with what is predicted of it."""

    layout: Layout
    step_time_s: float
    step_time_interval_s: tuple[float, float]  # 90 % interval
    tokens_per_s_per_gpu: float
    mfu: float
    gpu_hours_per_billion_tokens: float = 0.0  # what it costs, but for the price
    memory_bytes: float  # of the rank using most memory
    out_of_memory_probability: float
    parts_s: dict[str, float]  # sums to step_time_s
    memory_parts_bytes: dict[str, float]  # sums to memory_bytes
    why: str = ""  # against the winner: what it pays more for


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The best layouts of a search, and why not their neighbours."""

    workload: str
    cluster: str
    num_parameters: int
    global_batch: int
    seq: int
    precision: str
    num_layouts: int  # valid ones that were evaluated
    num_fitting: int
    search_s: float
    layouts: tuple[PlannedLayout, ...]  # fastest first
    neighbours: tuple[PlannedLayout, ...]  # one step from the winner
    worth_measuring: tuple[Layout, ...]
    pareto: tuple[PlannedLayout, ...] = ()  # no other is faster (so cheaper: the GPUs are the same) and smaller
    sensitivity: dict[str, float]  # what the winner's step time would be multiplied by
    calibrated_with: int  # measured runs; 0: the published accuracy holds
    goal: GoalAnswer | None = None  # with --goal


class SourceAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on the runs of one source, which no constant was fitted to. Shares of the measured value."""

    source: str
    rows: int
    mape: float | None  # null where no row has a step time
    # On the other rows, once three were used: those that the model would have measured, then the mean of 20 random
    # draws. Null with fewer than five rows.
    mape_calibrated: float | None
    mape_calibrated_random: float | None
    # What no calibration beats: the error on rows that all were used to fit, and of repeats from their median.
    mape_in_sample: float | None
    repeated_rows: int
    repeats_differ_by: float | None
    bias: float | None  # mean of predicted / measured - 1
    coverage_90: float | None  # share of rows inside their 90 % interval
    memory_rows: int
    memory_mape: float | None
    out_of_memory_rows: int
    out_of_memory_called_safe: int


class GroupRegret(msgspec.Struct, frozen=True, kw_only=True):
    """How much slower the best of the first k predicted layouts is than the best measured one of the group."""

    group: str
    n: int
    regret_top1: float
    regret_top3: float
    regret_top5: float


class PlanEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Measured runs replayed. `mape` and `mape_calibrated` weigh every source alike."""

    sources: tuple[SourceAccuracy, ...]
    groups: tuple[GroupRegret, ...]
    mape: float | None
    mape_calibrated: float | None
    mape_calibrated_random: float | None
    coverage_90: float | None
    rows_read: int
    rows_used: int
    held_out: str  # `source`: constants fitted without the source's own rows; `none`: shipped constants
