"""ONNX Runtime for scripts that infer: another execution provider, and models of torch exported to it."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "onnx"
_INFERS = Need(fact="only_infers", relation="is", value=True)
_CPU = Need(fact="device", relation="is", value="cpu")
_ONNX = Need(fact="runs_onnx", relation="is", value=True)

SESSION_PROVIDER = Knob(
    name="session-provider",
    family=FAMILY,
    summary="compute sessions of ONNX Runtime with another execution provider that is installed",
    safety="rounding",
    reduces={"compute": 0.9},
    needs=(_INFERS, _ONNX),
    valid=ValidRange(choices=("cuda", "tensorrt", "openvino")),
    gates=("loss", "memory"),
    doc=(
        "Only providers that this ONNX Runtime has are tried. Operators that the provider lacks stay on the CPU, and"
        " their inputs are copied. TensorRT builds its engine in the first calls, which takes minutes for large models."
    ),
    source="ONNX Runtime documentation, execution providers",
)
ONNX_EXPORT = Knob(
    name="onnx-export",
    family=FAMILY,
    summary="export the model to ONNX and compute it with ONNX Runtime",
    safety="rounding",
    answers={"eager-mode": 0.8, "thread-oversubscription": 0.3},
    reduces={"compute": 0.4},
    needs=(_INFERS, _CPU, Need(fact="has_onnx", relation="is", value=True)),
    excludes=("compile-cpu", "autocast-cpu", "channels-last-cpu"),
    gates=("loss", "memory"),
    doc=(
        "For models whose forward takes tensors and returns tensors, with at most four shapes; other calls are computed"
        " by the model. What depends on values (branches, lengths) is fixed by the first call of a shape: the outputs"
        " are compared with the script's own."
    ),
    source="torch.onnx documentation; ONNX Runtime documentation",
)
_PROVIDER_CLASSES = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
KNOBS = (SESSION_PROVIDER, ONNX_EXPORT)


def changes(facts: JobFacts) -> Iterator[Change]:
    if not facts.runs_onnx:
        yield setting(ONNX_EXPORT, patch="onnx_export")
        return
    others = (facts.other_providers or "").split(",")
    for name, provider in _PROVIDER_CLASSES.items():
        if provider in others:
            yield setting(SESSION_PROVIDER, name, patch="onnx_session", provider=name)
