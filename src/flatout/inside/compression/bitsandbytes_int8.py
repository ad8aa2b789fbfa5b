"""bitsandbytes-int8: bitsandbytes' `Linear8bitLt` in the place of the linear layers, where it is installed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from flatout.inside.compression.bitsandbytes_layers import replaced_by_bitsandbytes
from flatout.inside.compression.changed import Changed


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model."""
    return replaced_by_bitsandbytes(model, skip, _layer)


def _layer(layers: Any, linear: nn.Linear) -> nn.Module:
    has_bias = linear.bias is not None
    layer: nn.Module = layers.Linear8bitLt(linear.in_features, linear.out_features, has_bias, has_fp16_weights=False)
    return layer
