"""bitsandbytes-int8: bitsandbytes' `Linear8bitLt` in the place of the linear layers, where it is installed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from flatout.inside.compression.bitsandbytes_layers import replaced_by_bitsandbytes
from flatout.inside.compression.changed import Changed


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model."""
    return replaced_by_bitsandbytes(model, skip, int8_layer)


def int8_layer(layers: Any, linear: nn.Linear) -> Any:
    sizes = (linear.in_features, linear.out_features, linear.bias is not None)
    return layers.Linear8bitLt(*sizes, has_fp16_weights=False, device="meta")
