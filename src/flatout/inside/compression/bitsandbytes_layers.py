"""What the variants of bitsandbytes share: its linear layers in the place of a model's, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import linear_layers, put, use_replaced_layers

Make = Callable[[Any, nn.Linear], nn.Module]  # of the package's layers and a linear layer


def replaced_by_bitsandbytes(model: nn.Module, skip: Collection[str], make: Make) -> Changed:
    """Replace the linear layers; the weights are converted when a layer is moved to its GPU."""
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
        layer = make(bitsandbytes.nn, linear.module)
        layer.load_state_dict(linear.module.state_dict())
        put(model, linear.name, layer.to(linear.weight.device).train(linear.module.training))
        changed.append(linear.name)
    if not changed:
        raise NotAppliedError("the model has no linear layer that it fits")
    use_replaced_layers(model)
    return Changed(tuple(changed))
