"""torchao-int8-weights: torchao's `Int8WeightOnlyConfig` on the linear layers, if it is installed."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.torchao_layers import plain_layers, quantized_by_torchao, torchao_config


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Quantize the linear layers of the model."""
    config = torchao_config("Int8WeightOnlyConfig")
    return quantized_by_torchao(model, plain_layers(model, skip), config)
