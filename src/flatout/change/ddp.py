"""DistributedDataParallel: when gradients are reduced, in which pieces, and in which precision."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "ddp"
MIB = 1 << 20
BUCKETS_MIB = (100, 200, 50, 400)
DEFAULT_FIRST_MIB = 1  # torch's, where no size of the buckets is set
FIRST_BF16_ARCH = 8.0  # Ampere
_DDP = "torch DistributedDataParallel documentation"
_IS_DDP = Need(fact="wrapper", relation="is", value="ddp")
_SEVERAL = Need(fact="num_ranks", relation="at least", value=2)

BUCKET = Knob(
    name="ddp-bucket",
    family=FAMILY,
    summary="reduce gradients in larger buckets (MiB)",
    safety="exact",
    answers={"exposed-communication": 1.0},
    needs=(_IS_DDP, _SEVERAL),
    valid=ValidRange(least=1, most=4096),
    combines_with=("nccl-sockets", "ddp-first-bucket", "ddp-bucket-view"),
    gates=("loss", "data"),
    doc=(
        "The default of 25 MiB suits fast links. On slow or distant links, fewer and larger all-reduces cost less, but"
        " the last one begins later and is exposed. The size to try is the one that ends the exchange first, by when"
        " the trace's gradients become ready and what its all-reduces cost."
    ),
    source=f"{_DDP}; measured: with nccl-sockets 254 -> 79 ms per step of nanoGPT on 4 H200 over TCP",
)
FIRST_BUCKET = Knob(
    name="ddp-first-bucket",
    family=FAMILY,
    summary="give the gradients that are ready first a bucket of another size (MiB)",
    safety="exact",
    answers={"exposed-communication": 0.5},
    needs=(_IS_DDP, _SEVERAL, Need(fact="find_unused_parameters", relation="is", value=False)),
    valid=ValidRange(least=1, most=4096),
    combines_with=("ddp-bucket", "ddp-bucket-view"),
    gates=("loss", "data"),
    doc=(
        "torch begins with a bucket of 1 MiB, unless a size of the buckets is set: then the first one has that size"
        " too, and the exchange begins only when it is full. The size to try is the one that ends the exchange first,"
        " by when the trace's gradients become ready and what its all-reduces cost. DistributedDataParallel has no"
        " argument for it, but the reducer that it makes has (tried with torch 2.6 and 2.13). A model that looks for"
        " unused parameters keeps its buckets."
    ),
    source="torch.distributed.Reducer, `first_bucket_bytes_cap`",
)
BUCKET_VIEW = Knob(
    name="ddp-bucket-view",
    family=FAMILY,
    summary="let gradients be views into the buckets",
    safety="exact",
    answers={"memory-copy": 0.5},
    reduces={"compute": 0.05},
    saves_memory=0.25,
    needs=(_IS_DDP, _SEVERAL),
    doc="Saves one copy of all gradients, in time and in memory. A script that calls `detach_()` on a gradient fails.",
    source=_DDP,
)
STATIC_GRAPH = Knob(
    name="ddp-static-graph",
    family=FAMILY,
    summary="declare to DDP that each step uses the same parameters in the same order",
    safety="exact",
    answers={"host-bound": 0.2, "exposed-communication": 0.2},
    # With accumulation it may skip the reduction after the first step without an error message: wrong gradients.
    needs=(_IS_DDP, _SEVERAL, Need(fact="passes_per_step", relation="at most", value=1)),
    excludes=("ddp-no-sync", "compile"),
    gates=("loss", "data"),
    doc=(
        "Saves the search for unused parameters in each step. It is wrong for models whose graph changes and for"
        " gradient accumulation: there it fails or leaves gradients unreduced, so Flatout does not propose it."
    ),
    source=f"{_DDP}; pytorch/pytorch#187732 and #143580",
)
NO_SYNC = Knob(
    name="ddp-no-sync",
    family=FAMILY,
    summary="reduce gradients only in the last accumulation pass of a step",
    safety="exact",
    answers={"redundant-gradient-sync": 1.0},
    needs=(_IS_DDP, _SEVERAL, Need(fact="passes_per_step", relation="at least", value=2)),
    valid=ValidRange(least=2, most=4096),
    excludes=("ddp-static-graph",),
    gates=("loss", "data"),
    doc=(
        "Gradients add up locally, so one reduction after the last pass gives the same sum. It is wrong for a script"
        " that reads or clips gradients between the passes."
    ),
    source=f"{_DDP} (no_sync)",
)
COMPRESSION = Knob(
    name="ddp-compression",
    family=FAMILY,
    summary="send gradients in fewer bytes",
    safety="rounding",
    answers={"exposed-communication": 0.95, "redundant-gradient-sync": 0.95},
    needs=(_IS_DDP, _SEVERAL, Need(fact="gradient_element_bytes", relation="at least", value=4)),
    valid=ValidRange(choices=("bf16", "fp16", "int8", "powersgd-1", "powersgd-2", "topk-1%", "topk-10%")),
    only_if_it_pays=True,
    gates=("loss", "data", "memory"),
    doc=(
        "bf16 and fp16 halve the bytes, int8 quarters them at any number of ranks. PowerSGD sends low-rank factors,"
        " Top-K the largest entries; both keep the error and add it to the next step (error feedback), which takes"
        " memory; checkpoints of `flatout.checkpoint` save it. Top-K's bytes grow with the ranks: 1 % of the entries"
        " are more than fp32 with 100 ranks or more, 10 % with 10 or more."
        " With SGD, Top-K applies momentum before it chooses."
        " In a study, compression beat well-tuned plain reduction in 6 of more than 200 set-ups, all with slow"
        " networks. In trials, PowerSGD starts at the second step; a long training should start it after the"
        " learning-rate warm-up."
    ),
    source=(
        "torch ddp_comm_hooks; PowerSGD, arXiv:1905.13727; Deep Gradient Compression, arXiv:1712.01887;"
        " Agarwal et al., MLSys 2022, arXiv:2103.00543"
    ),
)
LOCAL_SGD = Knob(
    name="local-sgd",
    family=FAMILY,
    summary="exchange weights once in several steps instead of gradients in each",
    safety="semantic",
    answers={"exposed-communication": 0.97, "redundant-gradient-sync": 0.97},
    needs=(_IS_DDP, _SEVERAL, Need(fact="transport", relation="is", value="socket")),
    valid=ValidRange(choices=("average-8", "average-32", "diloco-32", "diloco-128")),
    excludes=("ddp-no-sync", "ddp-compression"),
    only_if_it_pays=True,
    gates=("loss", "memory"),
    doc=(
        "Each rank trains alone, and every N steps the ranks take the mean of their weights (average-N), or a step of"
        " SGD with Nesterov momentum along it (diloco-N). It trains another model: compare what it learns at equal"
        " samples before you keep it. It is meant for slow links between machines; a trial shorter than N steps does"
        " not show the exchange. A script that saves its model saves what its rank has."
    ),
    source="Local SGD, arXiv:1805.09767; DiLoCo, arXiv:2311.08105",
)
KNOBS = (BUCKET, FIRST_BUCKET, BUCKET_VIEW, STATIC_GRAPH, NO_SYNC, COMPRESSION, LOCAL_SGD)


def changes(facts: JobFacts) -> Iterator[Change]:
    for size in bucket_sizes(facts):
        yield setting(BUCKET, size, patch="ddp", bucket_cap_mb=size)
    first = facts.best_first_bucket_mib or DEFAULT_FIRST_MIB
    yield setting(FIRST_BUCKET, first, patch="ddp", first_bucket_mib=first)
    yield setting(BUCKET_VIEW, patch="ddp", gradient_as_bucket_view=True)
    yield setting(STATIC_GRAPH, patch="ddp", static_graph=True)
    passes = facts.passes_per_step
    if passes is not None and passes >= 2:
        yield setting(NO_SYNC, passes, patch="ddp_no_sync", passes=passes)
    yield from compressions(facts)
    for every in (8, 32):
        yield setting(LOCAL_SGD, f"average-{every}", patch="local_sgd", every=every)
    for every in (32, 128):
        yield setting(LOCAL_SGD, f"diloco-{every}", patch="local_sgd", every=every, outer=True)


def compressions(facts: JobFacts) -> Iterator[Change]:
    """Yield the ways to compress gradients. Ranks and links decide which pay: see `predict.gradient_exchange`."""
    has_bf16 = facts.gpu_arch is None or facts.gpu_arch >= FIRST_BF16_ARCH
    half = "bf16" if has_bf16 else "fp16"
    yield setting(COMPRESSION, half, patch="ddp_hook", hook=half)
    yield setting(COMPRESSION, "int8", patch="ddp_hook", hook="int8")
    for rank in (1, 2):
        yield setting(COMPRESSION, f"powersgd-{rank}", patch="ddp_hook", hook="powersgd", rank=rank, start=2)
    # Momentum can move into the hook only where a step has one pass: a bucket of a later pass holds earlier ones, too.
    has_momentum = facts.optimizer == "SGD" and facts.passes_per_step == 1
    for percent in (1, 10):
        top_k = setting(COMPRESSION, f"topk-{percent}%", patch="ddp_hook", hook="topk", percent=percent)
        yield _with_momentum(top_k) if has_momentum else top_k


def _with_momentum(top_k: Change) -> Change:
    assert top_k.patch is not None
    patch = msgspec.structs.replace(top_k.patch, parameters=top_k.patch.parameters | {"momentum": True})
    return msgspec.structs.replace(top_k, patch=patch)


def bucket_sizes(facts: JobFacts) -> tuple[int, ...]:
    """Return the bucket sizes to try: the one that the trace's layers prefer or, if that is unknown, a few.

    Of the few that hold all gradients, only the smallest is included.
    """
    if facts.best_bucket_mib is not None:
        return (facts.best_bucket_mib,)
    if facts.gradient_bytes is None:
        return BUCKETS_MIB
    holding = [size for size in sorted(BUCKETS_MIB) if size * MIB >= facts.gradient_bytes]
    return tuple(size for size in BUCKETS_MIB if size not in holding[1:])
