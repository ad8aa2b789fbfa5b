"""A linear layer that stores its weight in fewer bits and computes with the dense weight at each call.

It saves memory. It saves time only where reading the weight takes longer than making it dense.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from flatout.inside.compression.layers import Linear, Replacement


class StoredWeight(Replacement):
    """Subclasses register their buffers, and compute `dense_weight` from them."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias, requires_grad=False)
        self._dtype = linear.weight.dtype

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, self.dense_weight().to(inputs.dtype), self.bias)
