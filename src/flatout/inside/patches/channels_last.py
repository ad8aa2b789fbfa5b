"""Use the channels-last layout for the weights and 4-d inputs of models with 2-d convolutions."""

from __future__ import annotations

from typing import Any

import torch

from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

_MARK = "_flatout_channels_last"


def channels_last(report: Report) -> None:
    report.waits("no model was found")
    layout = torch.channels_last
    is_compiling = torch.compiler.is_compiling

    def laid_out(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
            return value.contiguous(memory_format=layout)
        return value

    def around(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if not is_compiling():
            report.did("forwards")
        return forward(
            module, *[laid_out(one) for one in args], **{name: laid_out(one) for name, one in kwargs.items()}
        )

    def found(model: Any) -> None:
        kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
        if not any(isinstance(module, kinds) for module in model.modules()):
            report.note("a model has no 2-d convolutions")
            return
        model.to(memory_format=layout)
        around_forward(model, _MARK, around)
        report.did("models")

    MODELS.on_model(report, found)
