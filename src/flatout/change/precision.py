"""Lower precision in training than bf16: fp16 with scaled losses, and fp8."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "precision"
_GPU = Need(fact="device", relation="is", value="cuda")
_PACKAGES = {"torchao": "has_torchao", "transformer_engine": "has_transformer_engine"}

FP16 = Knob(
    name="autocast-fp16",
    family=FAMILY,
    summary="run matrix multiplications and convolutions in fp16, with scaled losses",
    safety="rounding",
    answers={"no-tensor-cores": 1.0},
    reduces={"compute": 0.7},
    saves_memory=0.45,
    needs=(
        _GPU,
        Need(fact="gpu_arch", relation="at least", value=7.0),
        Need(fact="gpu_arch", relation="at most", value=7.9),
        Need(fact="is_autocast", relation="is not", value=True),
    ),
    excludes=("autocast", "fp8"),
    combines_with=("channels-last",),
    gates=("loss", "memory"),
    doc=(
        "For cards before Ampere, which have no bf16. fp16 has a small range: the backward pass starts from a scale,"
        " each parameter divides its gradient before it is added to `.grad`, and a step whose gradients overflowed is"
        " skipped, as with torch's GradScaler. The scale is in the checkpoints of `flatout.checkpoint`."
    ),
    source="Micikevicius et al., arXiv:1710.03740; torch.amp documentation",
)
FP8 = Knob(
    name="fp8",
    family=FAMILY,
    summary="multiply the matrices of linear layers in fp8",
    safety="rounding",
    reduces={"compute": 0.5},
    needs=(_GPU, Need(fact="gpu_arch", relation="at least", value=8.9)),
    valid=ValidRange(choices=("torchao", "transformer_engine")),
    excludes=("autocast-fp16",),
    combines_with=("autocast", "compile"),
    gates=("loss", "memory"),
    doc=(
        "Weights, gradients and states keep their type; the inputs of each multiplication are cast, each with its"
        " scale. The last layer and widths that 16 does not divide stay as they are. It pays for wide layers, mostly"
        " with `compile`, and can be slower for narrow ones: casts take time."
    ),
    source="torchao.float8 documentation; Transformer Engine documentation",
)
KNOBS = (FP16, FP8)


def changes(facts: JobFacts) -> Iterator[Change]:
    if facts.only_infers:
        return
    if facts.wrapper != "fsdp2":  # whose gradients are not the same on all ranks: each would skip other steps
        yield setting(FP16, patch="autocast", dtype="float16")
    for library, fact in _PACKAGES.items():
        if getattr(facts, fact):
            yield setting(FP8, library, patch="fp8", library=library)
