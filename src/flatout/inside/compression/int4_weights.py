"""int4-weights: linear layers store their weights in four bits, in groups of 32 with a scale and a least value each."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.layers import Linear, replace_linear_layers
from flatout.inside.compression.stored_weights import StoredWeight

GROUP = 32  # weights along the inputs
_MOST = 15
_LEAST_STEP = 1e-12


class Int4Weight(StoredWeight):
    packed: torch.Tensor  # two weights a byte; (outputs, groups, GROUP / 2)
    step: torch.Tensor  # (outputs, groups, 1)
    least: torch.Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        groups = linear.weight.reshape(len(linear.weight), -1, GROUP)
        least = groups.amin(dim=-1, keepdim=True)
        step = ((groups.amax(dim=-1, keepdim=True) - least) / _MOST).clamp(min=_LEAST_STEP)
        levels = torch.round((groups - least) / step).clamp(0, _MOST).to(torch.uint8)
        self.register_buffer("packed", levels[..., ::2] | (levels[..., 1::2] << 4))
        self.register_buffer("step", step.to(torch.bfloat16))
        self.register_buffer("least", least.to(torch.bfloat16))

    def dense_weight(self) -> torch.Tensor:
        levels = torch.stack([self.packed & _MOST, self.packed >> 4], dim=-1).flatten(-2)
        groups = levels.to(self._dtype) * self.step.to(self._dtype) + self.least.to(self._dtype)
        return groups.reshape(self.out_features, self.in_features)


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model whose inputs can be divided into groups."""
    return Changed(replace_linear_layers(model, skip, _replacement))


def _replacement(linear: Linear) -> nn.Module | None:
    return None if linear.weight.shape[1] % GROUP else Int4Weight(linear)
