"""The optimizer: one kernel for many parameters instead of several for each."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "optimizer"
WITH_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
WITH_8_BIT = ("Adam", "AdamW")
_DOCS = "torch.optim documentation"

FUSED = Knob(
    name="optimizer-fused",
    family=FAMILY,
    summary="use the optimizer's own fused kernels",
    safety="exact",
    answers={"small-kernels": 1.0, "host-bound": 0.3},
    needs=(Need(fact="optimizer", relation="is not", value=""),),
    excludes=("optimizer-foreach",),
    doc=(
        "All parameters are updated in a few kernels that read and write memory once: on one H200 4.9 -> 1.7 ms of GPU"
        " time for the same AdamW. Adam, AdamW, SGD and Adagrad have such kernels."
    ),
    source=_DOCS,
)
FOREACH = Knob(
    name="optimizer-foreach",
    family=FAMILY,
    summary="use the optimizer's multi-tensor kernels",
    safety="exact",
    answers={"small-kernels": 0.7, "host-bound": 0.2},
    needs=(Need(fact="optimizer", relation="is not", value=""),),
    excludes=("optimizer-fused",),
    gates=("loss", "memory"),
    doc="For optimizers without fused kernels; it holds temporaries of all parameters at once.",
    source=_DOCS,
)
ZERO_GRAD = Knob(
    name="zero-grad-to-none",
    family=FAMILY,
    summary="drop gradients instead of writing zeros",
    safety="exact",
    answers={"small-kernels": 0.3, "host-bound": 0.1, "memory-copy": 0.3},
    saves_memory=0.2,
    needs=(Need(fact="zero_grad_sets_to_none", relation="is", value=False),),
    doc=(
        "This is torch's default since 2.0, so it applies only if a script asks for zeros. The optimizer then skips a"
        " parameter without gradient instead of updating it with 0: with momentum or weight decay this changes what is"
        " trained, which the loss gate detects."
    ),
    source=f"{_DOCS} (zero_grad)",
)
EIGHT_BIT = Knob(
    name="optimizer-8bit",
    family=FAMILY,
    summary="keep the moments of Adam in 8 bits",
    safety="semantic",
    reduces={"compute": 0.1},
    saves_memory=0.3,
    needs=(Need(fact="device", relation="is", value="cuda"),),
    valid=ValidRange(choices=("bitsandbytes", "torchao")),
    excludes=("optimizer-fused", "optimizer-foreach"),
    gates=("loss", "memory"),
    doc=(
        "Moments are quantised in blocks: 2 bytes per parameter instead of 8. The steps differ from the script's, more"
        " for embeddings. A checkpoint has the package's state: it is read with the same optimizer only."
    ),
    source="Dettmers et al., arXiv:2110.02861; torchao.optim documentation",
)
_EIGHT_BIT_PACKAGES = {"bitsandbytes": "has_bitsandbytes", "torchao": "has_torchao"}
KNOBS = (FUSED, FOREACH, ZERO_GRAD, EIGHT_BIT)


def changes(facts: JobFacts) -> Iterator[Change]:
    has_fused = facts.optimizer in WITH_FUSED
    if has_fused and not facts.optimizer_is_fused:
        yield setting(FUSED, patch="optimizer", fused=True)
    # On a GPU torch uses it by default, unless the script says otherwise.
    if not facts.optimizer_is_fused and (facts.device != "cuda" or facts.optimizer_is_foreach is False):
        yield setting(FOREACH, patch="optimizer", foreach=True)
    yield setting(ZERO_GRAD, patch="zero_grad_to_none")
    for library, fact in _EIGHT_BIT_PACKAGES.items():
        if facts.optimizer in WITH_8_BIT and getattr(facts, fact):
            yield setting(EIGHT_BIT, library, patch="optimizer_8bit", library=library)
