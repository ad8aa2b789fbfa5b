"""bitsandbytes-nf4: bitsandbytes' `Linear4bit` with the type nf4 in the place of the linear layers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from flatout.inside.compression.bitsandbytes_layers import replaced_by_bitsandbytes
from flatout.inside.compression.changed import Changed


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model."""
    return replaced_by_bitsandbytes(model, skip, nf4_layer)


def nf4_layer(layers: Any, linear: nn.Linear) -> Any:
    sizes = (linear.in_features, linear.out_features, linear.bias is not None)
    return layers.Linear4bit(*sizes, compute_dtype=linear.weight.dtype, quant_type="nf4", device="meta")
