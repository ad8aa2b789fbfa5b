"""torchao-int4-weights: torchao's `Int4WeightOnlyConfig` on the linear layers, if it is installed."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.torchao_layers import quantized_by_torchao


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Quantize the linear layers of the model."""
    return quantized_by_torchao(model, skip, "Int4WeightOnlyConfig")
