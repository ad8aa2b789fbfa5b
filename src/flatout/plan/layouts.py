"""Every valid layout of a training on a cluster, as columns.

The rules come from Megatron-LM's arguments.py and the papers named in the other files:

- The product of the degrees is the number of GPUs.
- TP divides the heads, the hidden width and the feed-forward widths; it divides the key-value heads or is a multiple
  of them.
- Pipeline chunks have equally many layers, but the last one can have fewer, and with interleaving the first one, too.
- With interleaving, the number of micro-batches is a multiple of the number of stages.
- The sequence is divisible into 2 * CP pieces.
- EP divides the experts and the ranks of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.plan.inputs import RECOMPUTE, SCHEDULES
from flatout.records.plan import FULL_TRAINING, ClusterSpec, Layout, Training, Workload, layers_of_chunks

Array = npt.NDArray[np.float64]
Columns = dict[str, Array]
# The parameters of a layout, which `--fix` accepts.
LAYOUT_PARAMETERS = (
    *("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "zero", "shard", "offload", "micro_batch", "recompute", "schedule"),
)
COLUMNS = (
    *("tp", "pp", "cp", "ep", "etp", "dp", "sp", "vpp", "zero", "shard", "offload"),
    *("micro_batch", "num_micro", "recompute", "schedule"),
)
# No published run exceeds these limits, and without them such layouts would dominate a search.
MOST_CHUNKS, MOST_CP, MOST_TP, MOST_MICRO_BATCH = 64, 64, 64, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """The workload, the cluster and the batch, shared by all layouts of a search."""

    workload: Workload
    cluster: ClusterSpec
    global_batch: int  # sequences per step
    seq: int  # tokens per sequence
    document: int = 0  # tokens per document if several are packed into a sequence; otherwise 0
    images: int = 0  # images per sequence, for models with a vision tower
    offloads: bool = False  # whether to include layouts that keep the optimizer in host memory
    training: Training = FULL_TRAINING
    splits_experts: bool = False  # whether to include layouts with expert tensor parallelism


class Degrees(NamedTuple):
    """A split of the GPUs; the data-parallel degree follows from these degrees."""

    tp: int
    pp: int
    cp: int
    ep: int
    etp: int


class _Sharding(NamedTuple):
    """A way to shard the replicas' training state."""

    zero: float
    shard: float  # ranks that share one copy; 0: all replicas
    offload: float  # 1: the optimizer is in host memory


def divisors(number: int, most: int | None = None) -> list[int]:
    """Return the divisors in ascending order, up to `most` if given."""
    return [value for value in range(1, min(number, most or number) + 1) if number % value == 0]


def tp_is_valid(workload: Workload, tp: int) -> bool:
    """Whether TP can split the workload's widths."""
    widths = [workload.hidden, workload.num_heads, workload.ffn or tp, workload.shared_ffn or tp]
    if any(width % tp for width in widths):
        return False
    kv_heads = workload.num_kv_heads
    return kv_heads % tp == 0 or tp % kv_heads == 0


def chunks_are_valid(workload: Workload, pp: int, vpp: int) -> bool:
    """Whether the layers can be distributed over the pipeline's chunks.

    Each chunk has as many layers as the others, but the last one can have fewer, and of several per stage the first one
    as well. A stage has a layer; of several chunks, the first can have the embedding alone, and the last the logits.
    """
    layers = layers_of_chunks(workload.num_layers, pp, vpp)
    if vpp == 1:
        return layers[-1] > 0
    return pp > 1 and layers[0] >= 0 and layers[-1] >= 0


def cp_is_valid(seq: int, cp: int, tp: int) -> bool:
    """Whether the sequence can be split: causal CP gives each rank two pieces, which sequence parallelism splits."""
    return cp == 1 or seq % (2 * cp * tp) == 0


def degrees(spec: TrainingSpec) -> Iterator[Degrees]:
    """Yield all valid combinations of degrees."""
    workload, num_gpus = spec.workload, spec.cluster.num_gpus
    for tp in divisors(num_gpus, MOST_TP):
        if not tp_is_valid(workload, tp):
            continue
        for pp in divisors(num_gpus // tp, workload.num_layers):
            if not chunks_are_valid(workload, pp, 1):
                continue
            for cp in divisors(num_gpus // (tp * pp), MOST_CP):
                if not cp_is_valid(spec.seq, cp, tp):
                    continue
                for ep in divisors(max(workload.num_experts, 1), num_gpus // pp):
                    for etp in _expert_tensor_degrees(spec, tp):
                        if (num_gpus // pp) % (ep * etp) == 0:
                            yield Degrees(tp, pp, cp, ep, etp)


def _expert_tensor_degrees(spec: TrainingSpec, tp: int) -> list[int]:
    """Return the degrees of expert tensor parallelism to consider."""
    if not spec.splits_experts or not spec.workload.num_experts:
        return [1]
    return [etp for etp in divisors(tp) if spec.workload.expert_ffn % etp == 0]


def all_layouts(spec: TrainingSpec) -> Columns:
    """Return one row per valid layout; `recompute` and `schedule` are indices of their names."""
    num_gpus = spec.cluster.num_gpus
    blocks: list[Array] = []
    for split in degrees(spec):
        dp = num_gpus // (split.tp * split.pp * split.cp)
        if spec.global_batch % dp == 0:
            blocks.append(_layouts_of(spec, split, dp))
    if not blocks:
        return {name: np.zeros(0) for name in COLUMNS}
    return dict(zip(COLUMNS, np.concatenate(blocks, axis=1), strict=True))


def _layouts_of(spec: TrainingSpec, split: Degrees, dp: int) -> Array:
    """Return all layouts with these degrees, with one row per name in `COLUMNS` and one column per layout."""
    tp, pp, cp, ep, etp = split
    sequences = spec.global_batch // dp
    most_chunks = -(-(spec.workload.num_layers + 2) // pp)  # of a layer each, and of the embedding and the logits
    all_chunks = range(1, min(most_chunks, MOST_CHUNKS) + 1)
    shardings = _shardings(spec, dp * cp, tp, pp)
    micro_batch, vpp, sharding, sp, recompute, schedule = _combinations(
        np.array(divisors(sequences, MOST_MICRO_BATCH), dtype=np.float64),
        [chunks for chunks in all_chunks if chunks_are_valid(spec.workload, pp, chunks)],
        np.arange(len(shardings)),
        [0.0, 1.0] if tp > 1 else [0.0],
        np.arange(float(len(RECOMPUTE))),
        np.arange(float(len(SCHEDULES))),
    )
    zero, shard, offload = np.array(shardings)[sharding.astype(np.intp)].T
    num_micro = sequences / micro_batch
    # A single stage has only one schedule, and so do interleaved chunks.
    has_schedule = (schedule == SCHEDULES.index("1f1b")) | ((pp > 1) & (vpp == 1))
    divides_stages = (vpp == 1) | (num_micro % pp == 0)
    keeps_gradients_sharded = (zero != 2) | (num_micro == 1)
    is_valid = has_schedule & divides_stages & keeps_gradients_sharded
    constant = [np.full(int(is_valid.sum()), value, dtype=np.float64) for value in (tp, pp, cp, ep, etp, dp)]
    varied = (sp, vpp, zero, shard, offload, micro_batch, num_micro, recompute, schedule)
    return np.stack([*constant, *(values[is_valid] for values in varied)])


def _combinations(*axes: npt.ArrayLike) -> list[Array]:
    """Return every combination of the axes' values, as one flat column per axis."""
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def _shardings(spec: TrainingSpec, replicas: int, tp: int, pp: int) -> list[_Sharding]:
    """Return the ways to shard the replicas' training state, on the GPUs and, if the spec offloads, on the host.

    The only sharding group smaller than all replicas is an NVLink domain, which gathers its shards without the network.
    """
    unsharded = _Sharding(0.0, 0.0, 0.0)
    if replicas == 1:
        return [unsharded, unsharded._replace(offload=1.0)] if spec.offloads else [unsharded]
    groups = [0.0]
    largest_in_domain = divisors(replicas, max(spec.cluster.nvlink_domain // tp, 1))[-1]
    if 1 < largest_in_domain < replicas:
        groups.append(float(largest_in_domain))
    sharded = [_Sharding(1.0, group, 0.0) for group in groups]
    if pp == 1:  # with a pipeline, gradients stay unsharded while micro-batches accumulate into them
        sharded.append(_Sharding(2.0, 0.0, 0.0))
    sharded += [_Sharding(3.0, group, 0.0) for group in groups]
    on_host = [sharding._replace(offload=1.0) for sharding in sharded] if spec.offloads else []
    return [unsharded, *sharded, *on_host]


def layout_at(columns: Columns, row: int) -> Layout:
    """Return the layout in one row as a record."""
    whole = {name: int(values[row]) for name, values in columns.items()}
    return Layout(
        tp=whole["tp"],
        sequence_parallel=bool(whole["sp"]),
        pp=whole["pp"],
        vpp=whole["vpp"],
        cp=whole["cp"],
        ep=whole["ep"],
        etp=whole["etp"],
        dp=whole["dp"],
        zero=whole["zero"],
        shard=whole["shard"],
        offload=bool(whole["offload"]),
        micro_batch=whole["micro_batch"],
        num_micro_batches=whole["num_micro"],
        recompute=RECOMPUTE[whole["recompute"]],
        schedule=SCHEDULES[whole["schedule"]],
    )


def input_columns(columns: Columns, rows: slice | npt.NDArray[np.intp]) -> Columns:
    """Return the layouts' part of the cost model's inputs."""
    layouts = {name: values[rows] for name, values in columns.items()}
    recompute, schedule = layouts.pop("recompute"), layouts.pop("schedule")
    return {
        **layouts,
        "selective": (recompute == RECOMPUTE.index("selective")).astype(np.float64),
        "full": (recompute == RECOMPUTE.index("full")).astype(np.float64),
        "gpipe": (schedule == SCHEDULES.index("gpipe")).astype(np.float64),
        "zero_bubble": (schedule == SCHEDULES.index("zero-bubble")).astype(np.float64),
    }
