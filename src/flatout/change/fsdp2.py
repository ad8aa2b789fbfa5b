"""FSDP2 (`fully_shard`): when sharded weights are gathered, and how far ahead."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "fsdp2"
DEPTHS = (2, 1, 3)
_DOCS = "torch.distributed.fsdp.fully_shard documentation"
_IS_FSDP = Need(fact="wrapper", relation="is", value="fsdp2")
_SEVERAL = Need(fact="num_ranks", relation="at least", value=2)

KEEP_GATHERED = Knob(
    name="fsdp2-keep-gathered",
    family=FAMILY,
    summary="keep the weights gathered from forward to backward",
    safety="exact",
    answers={"exposed-all-gather": 1.0, "exposed-communication": 0.5},
    needs=(_IS_FSDP, _SEVERAL),
    gates=("loss", "data", "memory"),
    doc=(
        "`reshard_after_forward=False` omits the gathers before backward, at the price of all gathered weights in"
        " memory at once. Reported: +8 % (pytorch/torchtune#2402)."
    ),
    source=f"{_DOCS}; pytorch/torchtune#2402",
)
PREFETCH = Knob(
    name="fsdp2-prefetch",
    family=FAMILY,
    summary="gather the weights of this many further units ahead",
    safety="exact",
    answers={"exposed-all-gather": 1.0},
    needs=(_IS_FSDP, _SEVERAL),
    valid=ValidRange(least=1, most=8),
    gates=("loss", "data", "memory"),
    doc=(
        "Hides a gather behind more compute, at the price of the gathered weights of those units in memory. Reported"
        " from -7.6 % (SpecForge#566) to 23 -> 31 % MFU (NeMo Automodel#1711)."
    ),
    source=f"{_DOCS} (set_modules_to_forward_prefetch, set_modules_to_backward_prefetch)",
)
NO_SYNC = Knob(
    name="fsdp2-no-sync",
    family=FAMILY,
    summary="reduce gradients only in the last accumulation pass of a step",
    safety="exact",
    answers={"redundant-gradient-sync": 1.0},
    needs=(_IS_FSDP, _SEVERAL, Need(fact="passes_per_step", relation="at least", value=2)),
    valid=ValidRange(least=2, most=4096),
    gates=("loss", "data", "memory"),
    doc="The same sum from one reduction, at the price of unsharded gradients in memory between the passes.",
    source=f"{_DOCS} (set_requires_gradient_sync)",
)
HYBRID = Knob(
    name="fsdp2-hybrid",
    family=FAMILY,
    summary="shard the weights among the ranks of a host only, and keep a copy on each host",
    safety="exact",
    answers={"exposed-all-gather": 0.9, "exposed-communication": 0.9},
    needs=(_IS_FSDP, Need(fact="num_hosts", relation="at least", value=2)),
    valid=ValidRange(least=2, most=4096),
    gates=("loss", "data", "memory"),
    doc=(
        "Weights are gathered within a host, and only shards of gradients are reduced between hosts, so a step sends"
        " two shards between hosts in place of three times all weights. The price: each host holds all weights,"
        " gradients and optimizer states, so a rank needs as many times the memory for them as there are hosts. Only"
        " where the script shards over all ranks."
    ),
    source=f"{_DOCS} (a 2D mesh: hybrid sharding)",
)
KNOBS = (KEEP_GATHERED, PREFETCH, NO_SYNC, HYBRID)


def changes(facts: JobFacts) -> Iterator[Change]:
    if facts.reshards_after_forward is not False:
        yield setting(KEEP_GATHERED, patch="fsdp2", reshard_after_forward=False)
    depths = DEPTHS if facts.best_prefetch_depth is None else (facts.best_prefetch_depth,)
    for depth in depths:
        yield setting(PREFETCH, depth, patch="fsdp2", forward_prefetch=depth, backward_prefetch=depth)
    ranks = facts.ranks_per_host
    if ranks is not None and ranks >= 2 and facts.num_ranks is not None and facts.num_ranks % ranks == 0:
        yield setting(HYBRID, ranks, patch="fsdp2", ranks_per_copy=ranks)
    passes = facts.passes_per_step
    if passes is not None and passes >= 2:
        yield setting(NO_SYNC, passes, patch="fsdp2_no_sync", passes=passes)
