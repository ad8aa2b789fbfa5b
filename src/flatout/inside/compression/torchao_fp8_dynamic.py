"""torchao-fp8-dynamic: torchao's `Float8DynamicActivationFloat8WeightConfig`: it computes in float8.

Each output has a scale of its weights, and each row of the inputs its own, found at each call. It needs a GPU of
compute capability 8.9 or higher (Ada, Hopper), weights in bfloat16, and sizes that are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.layers import Linear
from flatout.inside.compression.torchao_layers import (
    check_capability,
    fitting_sizes,
    in_bfloat16,
    per_row,
    plain_layers,
    quantized_by_torchao,
    torchao_config,
)

WHAT = "computing in float8"
LEAST_CAPABILITY = (8, 9)
MULTIPLE = 16  # the kernel takes sizes that are multiples of it


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Quantize the linear layers of the model."""
    config = torchao_config("Float8DynamicActivationFloat8WeightConfig", granularity=per_row())
    linears = plain_layers(model, skip)
    check_capability(linears, LEAST_CAPABILITY, WHAT)
    linears = in_bfloat16(linears, WHAT)
    linears = fitting_sizes(linears, _fits, f"{WHAT} needs sizes that are multiples of {MULTIPLE}")
    return quantized_by_torchao(model, linears, config)


def _fits(linear: Linear) -> bool:
    return all(size % MULTIPLE == 0 for size in linear.weight.shape)
