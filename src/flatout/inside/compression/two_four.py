"""2:4: of each four weights of a linear layer the two smaller ones become 0, which some GPUs compute faster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import linear_layers

_LEAST_CAPABILITY = (8, 0)
_ROWS, _COLUMNS = 32, 64  # the kernel takes multiples of these


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Prune the linear layers of the model, and store them in the form of the sparse kernel."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        raise NotAppliedError("2:4 sparsity is faster on GPUs of compute capability 8.0 or more alone")
    from torch.sparse import to_sparse_semi_structured

    changed = []
    for linear in linear_layers(model, skip):
        outputs, inputs = linear.weight.shape
        is_half = linear.weight.dtype in (torch.float16, torch.bfloat16)
        if not is_half or outputs % _ROWS or inputs % _COLUMNS:
            continue
        layer: Any = linear.module
        layer.weight = nn.Parameter(to_sparse_semi_structured(pruned(linear.weight)), requires_grad=False)
        changed.append(linear.name)
    if not changed:
        raise NotAppliedError("no linear layer is in float16 or bfloat16 with sizes that the kernel takes")
    return Changed(tuple(changed))


def pruned(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight with the two smaller ones of each four along the inputs set to 0."""
    groups = weight.reshape(-1, 4)
    smaller = groups.abs().argsort(dim=1)[:, :2]
    return groups.scatter(1, smaller, 0.0).reshape(weight.shape)
