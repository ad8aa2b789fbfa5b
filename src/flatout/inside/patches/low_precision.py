"""Multiply the matrices of a model's linear layers in fp8, with torchao or Transformer Engine where they are installed.

The layers keep their parameters (the same objects, in the same type), so optimizers and checkpoints are as before.
Layers whose widths 16 does not divide, and the last layer of the model, stay as they are: the kernels do not take the
first, and rounding the logits costs most.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

FP8_CAPABILITY = (8, 9)  # Ada and Hopper
_MARK = "_flatout_fp8"


def fp8(report: Report, *, library: str = "torchao") -> None:
    report.waits("no model was found")
    if find_spec(library) is None:
        report.note(f"the package {library} is not installed")
        return
    if torch.cuda.device_count() == 0:
        report.note("there is no GPU")
        return
    convert = {"torchao": with_torchao, "transformer_engine": with_transformer_engine}[library]

    def found(model: Any) -> None:
        problem = _why_not(model)
        if problem is not None:
            report.note(problem)
            return
        number = convert(model)
        if number:
            report.did("layers", number)
        else:
            report.note("the model has no linear layer whose widths are multiples of 16")

    MODELS.on_model(report, found)


def _why_not(model: Any) -> str | None:
    """Return why this model cannot multiply in fp8; None if it can."""
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is None or device.type != "cuda":
        return "the model is not on a GPU"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < FP8_CAPABILITY:
        return f"the GPU has compute capability {major}.{minor}, and fp8 needs 8.9"
    return None


def _suits(module: Any, last: Any) -> bool:
    is_linear = type(module) is torch.nn.Linear
    return is_linear and module is not last and not (module.in_features % 16 or module.out_features % 16)


def _last_linear(model: Any) -> Any:
    return next((module for module in reversed(list(model.modules())) if type(module) is torch.nn.Linear), None)


def with_torchao(model: Any) -> int:
    convert = import_module("torchao.float8").convert_to_float8_training
    last = _last_linear(model)
    before = sum(type(module) is torch.nn.Linear for module in model.modules())
    convert(model, module_filter_fn=lambda module, name: _suits(module, last))
    return before - sum(type(module) is torch.nn.Linear for module in model.modules())


def with_transformer_engine(model: Any) -> int:
    engine: Any = import_module("transformer_engine.pytorch")
    last = _last_linear(model)
    number = 0
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if not _suits(module, last):
                continue
            layer = engine.Linear(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                params_dtype=module.weight.dtype,
                device=module.weight.device,
            )
            layer.weight, layer.training = module.weight, module.training
            if module.bias is not None:
                layer.bias = module.bias
            setattr(parent, name, layer)
            number += 1
    if number:
        around_forward(model, _MARK, _in_fp8(engine))
    return number


def _in_fp8(engine: Any) -> Any:
    def around(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        context: AbstractContextManager[Any] = engine.fp8_autocast(enabled=True)
        with context:
            return forward(module, *args, **kwargs)

    return around
