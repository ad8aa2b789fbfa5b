"""Run the model's forward in mixed precision and convert its outputs back to fp32, for a loss outside the model.

With fp16, losses are scaled for the backward pass (`loss_scaling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flatout.inside.patches.loss_scaling import scale_losses
from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

_MARK = "_flatout_autocast"


def autocast(report: Report, *, dtype: str = "bfloat16") -> None:
    report.waits("no model was found")
    lower = getattr(torch, dtype)
    device = "cuda" if torch.cuda.device_count() > 0 else "cpu"
    is_compiling = torch.compiler.is_compiling
    begins = scale_losses(report) if lower is torch.float16 else None

    def around(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if not report.is_on:
            return forward(module, *args, **kwargs)
        if torch.is_autocast_enabled(device):
            if not is_compiling():
                report.note("the script uses autocast itself")
            return forward(module, *args, **kwargs)
        if begins is not None and torch.is_grad_enabled() and not begins(module):
            return forward(module, *args, **kwargs)
        if not is_compiling():
            report.did("forwards")
        with torch.autocast(device, dtype=lower):
            output = forward(module, *args, **kwargs)
        return in_fp32(output, lower)

    def found(model: Any) -> None:
        around_forward(model, _MARK, around)
        report.did("models")

    MODELS.on_model(report, found)


def in_fp32(value: Any, lower: torch.dtype) -> Any:
    """Return the same structure with its lower-precision tensors in fp32; values of other types stay unchanged."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == lower else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(in_fp32(one, lower) for one in value))
    if type(value) in (list, tuple):
        return type(value)(in_fp32(one, lower) for one in value)
    if isinstance(value, Mapping):
        converted = {name: in_fp32(one, lower) for name, one in value.items()}
        if type(value) is dict:
            return converted
        try:
            return type(value)(**converted)
        except TypeError:
            return value
    return value
