"""The records of planning: the training job, its machines, a layout, and the predictions for it."""

from __future__ import annotations

import msgspec

from flatout.records.goal import GoalAnswer
from flatout.records.layers import LayerKind, Tower
from flatout.records.network import NetworkAnswer
from flatout.records.placement import PlannedPlacement


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a transformer that determine time and memory. Widths are numbers of elements."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int  # width of a dense layer's feed-forward network; 0 if no layer is dense
    is_gated: bool  # SwiGLU and similar: three matrices per feed-forward network instead of two
    vocab: int
    is_tied: bool  # the logits use the embedding's matrix
    has_bias: bool = False  # the linear layers and norms have biases, as in GPT-3, BERT and ViT
    has_qkv_bias: bool = False  # only the query, key and value projections have biases (Qwen 2)
    has_qk_norm: bool = False  # a norm on each head's queries and keys (Qwen 3)
    is_causal: bool = True
    max_positions: int = 0  # rows of a learned position table; 0 without one
    num_token_types: int = 0  # BERT's segment embeddings
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # width of the experts that every token uses
    num_moe_layers: int = 0
    q_rank: int = 0  # latent attention (DeepSeek): ranks of queries, and of keys with values; 0: not used
    kv_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0  # per head; 0: equal to head_dim
    patch_inputs: int = 0  # ViT: values of one patch, which a linear layer embeds in place of a vocabulary
    num_classes: int = 0  # ViT: outputs of the head
    # A model of a config.json: its layers by kind, which take the place of the widths above in every count.
    layers: tuple[LayerKind, ...] = ()
    kind_of_layer: tuple[int, ...] = ()  # the kind of each layer in the order of the model; empty: unknown
    outside_parameters: int = 0  # of what is in no layer, table of the vocabulary or tower: norms, positions, ...
    table_width: int = 0  # of the vocabulary's table; 0: the hidden width
    towers: tuple[Tower, ...] = ()
    source: str = ""


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, and by which optimizer."""

    optimizer: str = "adam"  # a name in `plan/optimizers.py`
    lora_rank: int = 0  # of the adapters that are trained in place of the model; 0: the model itself is trained
    lora_targets: tuple[str, ...] = ("attention",)  # names of matrices, or `attention` or `linear`
    base_bits: int = 16  # per weight of the frozen model's matrices: 4 (QLoRA), 8, or 16
    frozen: tuple[str, ...] = ()  # parts that are not trained: `vision`, `audio`, `embedding`, `experts`
    gradients: str = "fp32"  # type in which gradients are accumulated and reduced: fp32 or bf16
    is_pure_bf16: bool = False  # weights, gradients and moments have 16 bits, and there is no fp32 master weight


FULL_TRAINING = Training()


def counts_ends(num_layers: int, pp: int, vpp: int) -> bool:
    """Whether several chunks per stage are equal only if the embedding and the logits count as a layer each."""
    is_even = num_layers % (pp * vpp) == 0
    return vpp > 1 and not is_even and (num_layers + 2) % (pp * vpp) == 0


def layers_of_chunks(num_layers: int, pp: int, vpp: int) -> list[int]:
    """Return the layers of each chunk in the order of the model, whose first chunk has the embedding.

    If they are not equal, the last chunk, which has the logits, has fewer; where that leaves it none, the first one has
    fewer, too. A negative number says that the layers cannot be split so.
    """
    num_chunks = pp * vpp
    most = -(-num_layers // num_chunks)
    missing = most * num_chunks - num_layers
    missing_in_last = 1 if counts_ends(num_layers, pp, vpp) else min(missing, most)
    layers = [most] * num_chunks
    layers[-1] -= missing_in_last
    layers[0] -= missing - missing_in_last
    return layers


def has_own_split(num_layers: int, pp: int, vpp: int) -> bool:
    """Whether the chunks have different numbers of layers in a way that settings must list chunk by chunk."""
    return vpp > 1 and num_layers % (pp * vpp) != 0 and not counts_ends(num_layers, pp, vpp)


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one kind. Rates are per direction."""

    name: str
    gpu: str  # name in the catalogue
    num_gpus: int
    gpus_per_node: int
    nvlink_domain: int  # number of GPUs that reach each other at `link_bytes_per_s`
    link_bytes_per_s: float  # per GPU
    nic_bytes_per_s: float  # per GPU: the node's adapters are shared by its GPUs
    memory_bytes: int  # per GPU
    memory_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    num_sms: int
    oversubscription: float = 1.0  # of the network's core: 2 means that distant nodes reach half the rate
    pod_gpus: int = 0  # GPUs that reach each other without the core; 0: only those of one node
    is_rail_optimized: bool = False  # GPUs at the same position in their nodes share a switch
    fabric: str = "fat-tree"  # or rail (if `is_rail_optimized`), ring, torus
    torus: tuple[int, ...] = ()  # nodes in each dimension of a ring or torus
    network: str = "infiniband"  # or roce, ethernet
    host_link_bytes_per_s: float = 25e9  # per GPU, to its host's memory
    host_memory_bytes_per_s: float = 50e9  # of the host, per GPU
    origin: str = "vendor"  # vendor, measured or typed


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a job over its GPUs. `tp * pp * cp * dp` is the number of GPUs.

    Experts are spread over `ep` groups of the `tp * cp * dp` ranks of a stage; the `etp` ranks of a group share the
    matrices of the same experts.
    """

    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    vpp: int = 1  # model chunks per pipeline rank (interleaved schedule)
    cp: int = 1
    ep: int = 1
    etp: int = 1  # expert tensor parallelism
    dp: int = 1
    zero: int = 0  # what is sharded. 0: nothing, 1: optimizer, 2: also gradients, 3: also parameters (FSDP)
    shard: int = 0  # ranks over which ZeRO shards; each such group has a complete copy (HSDP); 0: all replicas
    offload: bool = False  # optimizer states are kept and updated in the host's memory (ZeRO-Offload)
    micro_batch: int = 1
    num_micro_batches: int = 1  # per step and replica: accumulation
    recompute: str = "none"  # none, selective, full
    schedule: str = "1f1b"  # gpipe, 1f1b, zero-bubble


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of the training software in a step. The defaults are those of current Megatron-Core and FSDP2."""

    is_known: bool = True  # whether the catalogue knows the framework
    fused_attention: bool = True  # FlashAttention or cuDNN; otherwise the scores are written to memory
    overlaps_dp: bool = True  # gradients are reduced during the backward pass
    overlaps_pp: bool = True  # interleaved sends and receives run alongside compute
    has_late_attention: bool = True  # cuDNN's or FlashAttention 3, written for the GPU; otherwise FlashAttention 2
    has_first_flash: bool = False  # FlashAttention 1
    scatters_sends: bool = True  # a tensor-parallel group sends each value once (arXiv 2104.04473, 4.1)
    # Matrix multiplications and their collectives are split into pieces that run concurrently: 1 for NVIDIA's kernels,
    # 0.5 for torch's.
    overlaps_tp: float = 0.0
    has_early_experts: bool = False  # from before the releases whose mixtures of experts were published in numbers
    overlaps_ep: bool = False  # one micro-batch's dispatch runs during another's compute
    uses_graphs: bool = False  # the whole step is one CUDA graph: the host launches nothing
    lacks_graphs: bool = False  # no part of a layer is a CUDA graph, or nobody says so
    is_blocking: bool = False  # CUDA_LAUNCH_BLOCKING=1: the host waits for each kernel before the next
    is_eager: bool = False  # elementwise operators are separate kernels: neither compiled nor fused
    gathers_per_layer: float = 1.0  # with ZeRO 3: FSDP gathers a layer at once, DeepSpeed each parameter
    # copies of gathered data: 2 if it arrives as a list of pieces, which are copied together
    gather_copies: float = 1.0
    # gathered once for recomputation and once for the backward pass, rather than once for both
    gathers_again: bool = False
    gradient_bytes: float = 4.0  # size of one gradient when accumulated and reduced
    held_gradient_bytes: float = 4.0  # size of one gradient in memory, with its copies
    selective_share: float = 0.0  # share of a layer's matrix multiplications that `recompute = "selective"` repeats
    # `recompute = "selective"` repeats norms, the experts' activation and latent attention's up projections
    selects_modules: bool = False
    keeps_low: bool = False  # in fp8, matrix multiplications keep their inputs for the backward in fp8
    optimizer_share: float = 1.0  # bytes of master weight and optimizer states relative to those with fp32
    buffer_bytes: float = 0.0  # of buckets for gradients and parameters, whatever the layout
    # a pipeline stage reserves buffers for twice as many micro-batches as there are stages, before the first step
    reserves_pipeline: bool = False
    logits_bytes: float = 8.0  # per logit at the loss: the logits in 16 bits and fp32, and a gradient in 16 bits


class PlannedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout with its predictions."""

    layout: Layout
    step_time_s: float
    step_time_interval_s: tuple[float, float]  # 90 % interval
    tokens_per_s_per_gpu: float
    mfu: float
    gpu_hours_per_billion_tokens: float = 0.0  # cost; None if no price is known
    memory_bytes: float  # of the rank that uses the most memory
    out_of_memory_probability: float
    parts_s: dict[str, float]  # sums to step_time_s
    memory_parts_bytes: dict[str, float]  # sums to memory_bytes
    why: str = ""  # the parts in which it is slower than the winner
    runs_on: tuple[str, ...] = ()  # the frameworks that can run it, by their names for --for


class ExcludedLayouts(msgspec.Struct, frozen=True, kw_only=True):
    """Valid layouts that the target of a plan cannot run."""

    framework: str
    why: str  # the framework's limit, as the rest of a sentence that begins with its name
    num_layouts: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The best layouts of a search, and why their neighbours lost."""

    workload: str
    cluster: str
    num_parameters: int
    num_trained_parameters: int | None = None  # of adapters, or without frozen parts; null: all
    optimizer: str = "adam"
    gradients: str = "fp32"
    is_pure_bf16: bool = False
    global_batch: int
    seq: int
    precision: str
    num_layouts: int  # valid layouts that were evaluated
    num_fitting: int
    search_s: float
    layouts: tuple[PlannedLayout, ...]  # fastest first
    neighbours: tuple[PlannedLayout, ...]  # layouts that differ from the winner in one step
    worth_measuring: tuple[Layout, ...]
    # no other layout is both faster (and so cheaper, with the same GPUs) and smaller
    pareto: tuple[PlannedLayout, ...] = ()
    sensitivity: dict[str, float]  # factor on the winner's step time
    risk: float = 0.10  # layouts are offered below this probability of running out of memory
    calibrated_with: int  # measured runs; 0: the published accuracy applies
    goal: GoalAnswer | None = None  # with --goal
    network: NetworkAnswer | None = None  # with --fabric, --oversubscription, --leaf-nodes or --torus
    placement: PlannedPlacement | None = None  # of the first layout's ranks; null: one node, or nodes partly empty
    target: str = ""  # with --for: the framework that can run every layout, or `any`
    excluded: tuple[ExcludedLayouts, ...] = ()  # why the target cannot run other valid layouts


class SourceAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on the runs of one source, to which no constant was fitted, as shares of the measured value."""

    source: str
    rows: int
    mape: float | None  # null if no row has a step time
    # Errors on the other rows after three rows were used for calibration: the three that the model would have chosen,
    # then the mean of 20 random draws. Null with fewer than five rows.
    mape_calibrated: float | None
    mape_calibrated_random: float | None
    # A lower bound for any calibration: the error on rows that were all used in the fit, and of repeats from their
    # median.
    mape_in_sample: float | None
    repeated_rows: int
    repeats_differ_by: float | None
    bias: float | None  # mean of predicted / measured - 1
    coverage_90: float | None  # share of rows inside their 90 % interval
    memory_rows: int
    memory_mape: float | None
    out_of_memory_rows: int
    out_of_memory_called_safe: int
    # Rows that ran: their number, the share that the default risk calls unsafe, and how many do not say what they
    # recompute. These are called unsafe if no recomputation makes them safe; `called_unsafe_as_read` takes them to
    # recompute nothing.
    ran_rows: int = 0
    called_unsafe: float | None = None
    called_unsafe_as_read: float | None = None
    recompute_unknown_rows: int = 0


class GroupRegret(msgspec.Struct, frozen=True, kw_only=True):
    """The slowdown of the best of the first k predicted layouts relative to the best measured layout of the group."""

    group: str
    n: int
    regret_top1: float
    regret_top3: float
    regret_top5: float
    # The same if only layouts that the default risk calls safe are considered; null if there are none.
    num_safe: int = 0
    regret_top1_gated: float | None = None
    regret_top3_gated: float | None = None
    regret_top5_gated: float | None = None


class PlanEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of replaying measured runs. `mape` and `mape_calibrated` weigh every source equally."""

    sources: tuple[SourceAccuracy, ...]
    groups: tuple[GroupRegret, ...]
    mape: float | None
    mape_calibrated: float | None
    mape_calibrated_random: float | None
    coverage_90: float | None
    rows_read: int
    rows_used: int
    # The share of all rows that ran which the default risk calls unsafe; the same if unknown recomputation is none.
    called_unsafe: float | None = None
    called_unsafe_as_read: float | None = None
    memory_mape: float | None = None  # every source with measured peaks weighs equally
    held_out: str  # `source`: constants fitted without the source's own rows; `none`: shipped constants
