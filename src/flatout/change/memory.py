"""Device memory: the tensors that are kept, and how the allocator manages memory."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "memory"
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_DOCS = "PyTorch documentation, CUDA semantics, memory management"
_GPU = Need(fact="device", relation="is", value="cuda")

KEEP_CACHE = Knob(
    name="keep-cache",
    family=FAMILY,
    summary="ignore torch.cuda.empty_cache()",
    safety="exact",
    answers={"allocator-churn": 1.0},
    needs=(_GPU,),
    gates=("loss", "memory"),
    doc=(
        "A script that empties the allocator's cache in its loop pays for freeing and allocating again in every step,"
        " and each free waits for the GPU. It is wrong if another process on the same GPU needs that memory."
    ),
    source=_DOCS,
)
EXPANDABLE = Knob(
    name="allocator-expandable",
    family=FAMILY,
    summary="let the allocator's segments grow instead of holding many of fixed size",
    safety="exact",
    answers={"allocator-churn": 1.0},
    saves_memory=0.1,
    needs=(_GPU, Need(fact="torch", relation="at least", value="2.4")),
    excludes=("allocator-collection",),
    gates=("loss", "memory"),
    doc="Reduces fragmentation if sizes change from step to step. Sharing device memory between processes can fail.",
    source=_DOCS,
)
COLLECTION = Knob(
    name="allocator-collection",
    family=FAMILY,
    summary="free unused blocks before memory is full, when this share is used",
    safety="exact",
    answers={"allocator-churn": 0.5},
    needs=(_GPU,),
    valid=ValidRange(least=0.5, most=0.95),
    excludes=("allocator-expandable",),
    gates=("loss", "memory"),
    doc="Avoids the costly release of everything when an allocation fails (allocator retries).",
    source=_DOCS,
)
CHECKPOINTING = Knob(
    name="activation-checkpointing",
    family=FAMILY,
    summary="compute activations again in backward instead of keeping them",
    safety="exact",
    saves_memory=0.6,
    needs=(_GPU,),
    valid=ValidRange(least=1, most=64),
    gates=("loss", "memory"),
    doc=(
        "Saves memory at the cost of up to one more forward pass, which a larger batch can make up for. The value N"
        " recomputes every Nth block. Random states are kept, so dropout uses the same masks."
    ),
    source="torch.utils.checkpoint documentation; Chen et al., arXiv:1604.06174",
)
KNOBS = (KEEP_CACHE, EXPANDABLE, COLLECTION, CHECKPOINTING)


def changes(facts: JobFacts) -> Iterator[Change]:
    yield setting(KEEP_CACHE, patch="keep_cache")
    yield setting(EXPANDABLE, environment={VARIABLE: _with(facts, "expandable_segments", "True")})
    yield setting(COLLECTION, 0.8, environment={VARIABLE: _with(facts, "garbage_collection_threshold", "0.8")})
    for every in (1, 2):
        yield setting(CHECKPOINTING, every, patch="activation_checkpointing", every=every)


def _with(facts: JobFacts, option: str, value: str) -> str:
    """Return the job's own setting of the variable with this option added or replaced."""
    own = [item for item in facts.environment.get(VARIABLE, "").split(",") if item]
    return ",".join([*(item for item in own if item.partition(":")[0] != option), f"{option}:{value}"])
