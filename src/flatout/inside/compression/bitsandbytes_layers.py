"""What the variants of bitsandbytes share: its linear layers in the place of a model's, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import linear_layers, put, use_replaced_layers

Make = Callable[[Any, nn.Linear], Any]  # of the package's layers and a linear layer: an empty layer of the same sizes


def replaced_by_bitsandbytes(model: nn.Module, skip: Collection[str], make: Make) -> Changed:
    """Replace the linear layers of the model."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise NotAppliedError("bitsandbytes is not installed") from error
    if not torch.cuda.is_available():
        raise NotAppliedError("bitsandbytes is tried on GPUs alone")
    changed = []
    for linear in linear_layers(model, skip):
        if type(linear.module) is not nn.Linear:
            continue
        layer = filled(make(bitsandbytes.nn, linear.module), linear.module)
        put(model, linear.name, layer.train(linear.module.training))
        changed.append(linear.name)
    if not changed:
        raise NotAppliedError("the model has no linear layer that it fits")
    use_replaced_layers(model)
    return Changed(tuple(changed))


def filled(layer: Any, linear: nn.Linear) -> nn.Module:
    """Return the layer with the weights of another one, in their own type.

    The weights are converted when they are moved from the CPU to the device of the other layer.
    """
    options = layer.weight.__dict__
    layer.weight = type(layer.weight)(linear.weight.detach().cpu(), requires_grad=False, **options)
    layer.bias = linear.bias
    moved: nn.Module = layer.to(linear.weight.device)
    return moved
