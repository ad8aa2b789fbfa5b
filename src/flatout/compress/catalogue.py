"""The variants that are tried, and why others are not offered.

Each row has the name, how it is applied, and a sentence on what it is. Rows of patches are files of the same name in
`inside/compression/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from flatout.compress.backend import Variant
from flatout.errors import UsageError
from flatout.records.compression import AppliedBy

ModelKind = Literal["onnx", "folder", "none"]


class VariantRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    summary: str
    applied_by: AppliedBy = "patch"
    needs: tuple[str, ...] = ()  # packages of the script's Python
    needs_calibration: bool = False
    needs_gpu: bool = False
    model: ModelKind = "none"  # for `files`: what the model must be


ROWS: tuple[VariantRow, ...] = (
    VariantRow(name="bf16", summary="weights and computing in bfloat16"),
    VariantRow(name="int8-dynamic", summary="linear layers in int8; the scale of their inputs is found at each call"),
    VariantRow(
        name="int8-static",
        summary="linear and convolution layers in int8 on a CPU, with scales from a calibration run of the evaluation",
        needs_calibration=True,
    ),
    VariantRow(name="int8-weights", summary="weights of linear layers in int8, computing as before"),
    VariantRow(name="int4-weights", summary="weights of linear layers in four bits, in groups of 32"),
    VariantRow(name="fp8", summary="linear layers in float8; weights alone where the device does not compute in it"),
    VariantRow(name="onnx", summary="exported to ONNX, run by ONNX Runtime on the CPU", needs=("onnx", "onnxruntime")),
    VariantRow(name="onnx-int8", summary="the same with weights in int8", needs=("onnx", "onnxruntime")),
    VariantRow(
        name="torchao-int8-dynamic", summary="torchao's int8 with scales found at each call", needs=("torchao",)
    ),
    VariantRow(name="torchao-int8-weights", summary="torchao's int8 weights", needs=("torchao",)),
    VariantRow(name="torchao-int4-weights", summary="torchao's int4 weights in groups", needs=("torchao",)),
    VariantRow(
        name="torchao-fp8-dynamic",
        summary="torchao's float8 for weights and inputs, a scale for each row; compute capability 8.9 and bfloat16",
        needs=("torchao",),
        needs_gpu=True,
    ),
    VariantRow(name="torchao-fp8-weights", summary="torchao's float8 weights, computing as before", needs=("torchao",)),
    VariantRow(
        name="bitsandbytes-int8", summary="bitsandbytes' `Linear8bitLt`", needs=("bitsandbytes",), needs_gpu=True
    ),
    VariantRow(
        name="bitsandbytes-nf4", summary="bitsandbytes' `Linear4bit` with nf4", needs=("bitsandbytes",), needs_gpu=True
    ),
    VariantRow(name="prune-channels", summary="a quarter of the hidden channels removed, without training"),
    VariantRow(name="prune-channels-half", summary="half of the hidden channels removed, without training"),
    VariantRow(name="prune-heads", summary="a quarter of the attention heads removed, without training"),
    VariantRow(
        name="2:4", summary="two of each four weights 0, for GPUs that compute faster with them", needs_gpu=True
    ),
    VariantRow(
        name="file-bf16",
        summary="the weights of a folder of Hugging Face in bfloat16",
        applied_by="files",
        model="folder",
    ),
    VariantRow(name="file-int8", summary="a file of ONNX with weights in int8", applied_by="files", model="onnx"),
    VariantRow(name="file-fp16", summary="a file of ONNX in float16", applied_by="files", model="onnx"),
)
_BY_NAME = {row.name: row for row in ROWS}


def chosen_rows(names: Sequence[str], kind: ModelKind = "none") -> tuple[VariantRow, ...]:
    """Return the rows of these names; without any, those that fit the model. Raises UsageError for an unknown name."""
    if not names:
        return tuple(row for row in ROWS if misfit(row, kind) is None)
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        raise UsageError(f"`--variants` must be of {', '.join(_BY_NAME)}, but got {unknown[0]}")
    return tuple(_BY_NAME[name] for name in dict.fromkeys(names))


def misfit(row: VariantRow, kind: ModelKind) -> str | None:
    """Return why a variant does not fit what the model is; None if it does."""
    if row.applied_by == "patch":
        return "a file of ONNX has no modules to change" if kind == "onnx" else None
    if row.model == kind:
        return None
    return "it needs `--model` with a " + ("folder of Hugging Face" if row.model == "folder" else "file of ONNX")


def unoffered(row: VariantRow, installed: Mapping[str, bool], *, has_gpu: bool, kind: ModelKind = "none") -> str | None:
    """Return why a variant is not offered; None if it is. Packages that are not in `installed` are unknown."""
    if misfit(row, kind) is not None:
        return misfit(row, kind)
    missing = [name for name in row.needs if installed.get(name) is False]
    if missing:
        return f"{' and '.join(missing)} cannot be imported by the script's Python"
    if row.needs_gpu and not has_gpu:
        return "this machine has no NVIDIA GPU"
    return None


def variant_of(row: VariantRow) -> Variant:
    if row.applied_by == "files":
        return Variant(name=row.name, applied_by="files")
    return Variant(name=row.name, kind=row.name, needs_calibration=row.needs_calibration)
