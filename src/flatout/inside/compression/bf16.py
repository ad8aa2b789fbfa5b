"""bf16: the whole model in bfloat16; its inputs are converted at the call, and its outputs back to float32."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import is_skipped
from flatout.inside.patches.autocast import in_fp32
from flatout.inside.patches.models import around_forward

_MARK = "_flatout_bf16"
_MARK_OF_SKIPPED = "_flatout_fp32"


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Convert the model, except the modules in `skip`."""
    names = [name for name, module in model.named_modules() if _has_own_weights(module) and not is_skipped(name, skip)]
    if not names:
        raise NotAppliedError("the model has no weights in float32")
    model.to(torch.bfloat16)
    for name in skip:
        kept = model.get_submodule(name)
        kept.float()
        around_forward(kept, _MARK_OF_SKIPPED, _in_float32)
    around_forward(model, _MARK, _in_bfloat16)
    return Changed(tuple(names))


def _has_own_weights(module: nn.Module) -> bool:
    return any(parameter.dtype == torch.float32 for parameter in module.parameters(recurse=False))


def _in_bfloat16(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _cast((args, kwargs), torch.float32, torch.bfloat16)
    output = forward(module, *args, **kwargs)
    return in_fp32(output, torch.bfloat16)


def _in_float32(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _cast((args, kwargs), torch.bfloat16, torch.float32)
    output = forward(module, *args, **kwargs)
    return _cast(output, torch.float32, torch.bfloat16)


def _cast(value: Any, before: torch.dtype, after: torch.dtype) -> Any:
    """Return the same structure with its tensors of one type in another; values of other types stay unchanged."""
    if isinstance(value, torch.Tensor):
        return value.to(after) if value.dtype == before else value
    if type(value) in (list, tuple):
        return type(value)(_cast(each, before, after) for each in value)
    if type(value) is dict:
        return {name: _cast(each, before, after) for name, each in value.items()}
    return value
