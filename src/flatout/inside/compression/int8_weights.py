"""int8-weights: linear layers store their weights in int8, with a scale for each output, and compute as before."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.int8_scales import per_row_int8
from flatout.inside.compression.layers import Linear, replace_linear_layers
from flatout.inside.compression.stored_weights import StoredWeight


class Int8Weight(StoredWeight):
    int8_weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        weight, scale = per_row_int8(linear.weight)
        self.register_buffer("int8_weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute with torch's kernel for bfloat16 on a CPU, which reads the int8 weight itself."""
        if inputs.dtype != torch.bfloat16 or inputs.device.type != "cpu":
            return super().forward(inputs)
        rows = inputs.reshape(-1, inputs.shape[-1])
        output = torch._weight_int8pack_mm(rows, self.int8_weight, self.scale.to(inputs.dtype))
        output = output.reshape(*inputs.shape[:-1], -1)
        return output if self.bias is None else output + self.bias

    def dense_weight(self) -> torch.Tensor:
        return self.int8_weight.to(self.scale.dtype) * self.scale[:, None]


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model."""
    return Changed(replace_linear_layers(model, skip, Int8Weight))
