"""Read the training software and the layout from a row of a table of measured runs."""

from __future__ import annotations

from flatout.catalog.frameworks import frameworks_named, options_of
from flatout.catalog.run_spellings import number_in, run_spellings, value_of
from flatout.plan.run_row import RunRow
from flatout.records.plan import Layout, Software

GPUS_PER_NODE = 8  # assumed if a row that shards within nodes does not give their size
# The beginning of a row's `sequence_parallel` if it is enabled.
_ON = ("yes", "recipe", "true")


def software_of(row: RunRow) -> Software:
    """Return the behaviour of the row's software, from the catalogue's entries for its framework and columns."""
    columns = row.all_lower()
    frameworks = frameworks_named(row.text("framework"))
    settings: dict[str, bool | float] = {"is_known": any(entry.words for entry in frameworks)}
    for entry in (*frameworks, *options_of(columns)):
        settings |= entry.software
    return Software(**settings)  # type: ignore[arg-type]  # the catalogue's tests hold the settings to the fields


def layout_of(row: RunRow, software: Software) -> Layout | None:
    """Return the layout; None if its degrees do not divide the GPUs."""
    tp, pp, cp = row.whole("tp", 1), row.whole("pp", 1), row.whole("cp", 1)
    num_gpus, micro_batch = row.whole("num_gpus", 1), row.whole("micro_batch", 1)
    if num_gpus % (tp * pp * cp):
        return None
    dp = num_gpus // (tp * pp * cp)
    sharding = row.lower("sharding")
    return Layout(
        tp=tp,
        sequence_parallel=tp > 1 and _has_sequence_parallelism(row, software),
        pp=pp,
        vpp=_chunks(row, pp),
        cp=cp,
        ep=row.whole("ep", 1),
        etp=row.whole("etp", _usual_expert_tensor_degree(row, tp)),
        dp=dp,
        zero=_zero_stage(row),
        shard=_shard_group(row, dp * cp),
        offload="offload" in sharding,
        micro_batch=micro_batch,
        num_micro_batches=max(round(row.whole("global_batch", 1) / (dp * micro_batch)), 1),
        recompute=_recompute(row),
        schedule="zero-bubble" if "zb" in row.lower("vpp") else "1f1b",
    )


def _usual_expert_tensor_degree(row: RunRow, tp: int) -> int:
    """Return over how many ranks an expert's matrices are split if the row does not say.

    Without expert parallelism, experts are split like all other layers; with it, recipes keep each expert whole.
    """
    is_split_otherwise = row.whole("ep", 1) > 1 or not row.whole("experts")
    return 1 if is_split_otherwise else tp


def _has_sequence_parallelism(row: RunRow, software: Software) -> bool:
    """Whether the row uses sequence parallelism; if it does not say, software with fused attention does."""
    text = row.lower("sequence_parallel")
    return text.startswith(_ON) if text else software.fused_attention


def _zero_stage(row: RunRow) -> int:
    """Return the ZeRO stage: the row's, else the one that its framework uses unless it is set."""
    sharding = row.lower("sharding")
    if sharding:
        return value_of(run_spellings().zero, sharding)
    return max((entry.usual_zero or 0 for entry in frameworks_named(row.text("framework"))), default=0)


def _recompute(row: RunRow) -> str:
    text = row.lower("recompute")
    return next((kind for kind in ("full", "selective") if text.startswith(kind)), "none")


def says_recompute(row: RunRow) -> bool:
    """Whether the row says what is recomputed."""
    text = row.lower("recompute")
    return bool(text) and not text.startswith("unknown")


def _chunks(row: RunRow, pp: int) -> int:
    """Return the chunks per pipeline rank: the row's, else as many as its framework's recipes use."""
    if pp == 1:
        return 1
    if row.text("vpp"):
        return row.whole("vpp", 1)
    most = max((entry.most_chunks or 1 for entry in frameworks_named(row.text("framework"))), default=1)
    layers = row.whole("layers", 1)
    if layers % pp:
        return 1
    return max(chunks for chunks in range(1, most + 1) if layers // pp % chunks == 0)


def _shard_group(row: RunRow, replicas: int) -> int:
    """Return the number of ranks over which ZeRO shards; 0: all replicas."""
    sharding = row.lower("sharding")
    size = number_in(run_spellings().patterns.shard_group, sharding)
    if size is None and value_of(run_spellings().sharded_in_node, sharding):
        size = row.whole("gpus_per_node", GPUS_PER_NODE)
    is_part_of_replicas = size is not None and 2 <= size < replicas and replicas % size == 0
    return size if size is not None and is_part_of_replicas else 0
