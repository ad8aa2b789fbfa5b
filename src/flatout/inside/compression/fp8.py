"""fp8: linear layers in float8 (e4m3): on GPUs that can compute in it, inputs too; elsewhere their weights alone.

Each output has a scale of its weights, and each row of the inputs its own.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import Linear, replace_linear_layers
from flatout.inside.compression.stored_weights import StoredWeight

_LEAST_CAPABILITY = (8, 9)
_LEAST_SCALE = 1e-12
_ALIGNED = 16  # the kernel takes sizes that are multiples of it


class Fp8Weight(StoredWeight):
    fp8_weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        weight, scale = _rounded(linear.weight)
        self.register_buffer("fp8_weight", weight)
        self.register_buffer("scale", scale)

    def dense_weight(self) -> torch.Tensor:
        return self.fp8_weight.to(self.scale.dtype) * self.scale[:, None]


class Fp8Linear(Fp8Weight):
    """It computes in float8, for inputs of bfloat16."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.dtype != torch.bfloat16:
            return super().forward(inputs)
        rows, row_scale = _rounded(inputs.reshape(-1, inputs.shape[-1]))
        output = torch._scaled_mm(
            rows,
            self.fp8_weight.t(),
            scale_a=row_scale[:, None].float(),
            scale_b=self.scale[None, :].float(),
            bias=self.bias,
            out_dtype=torch.bfloat16,
        )
        return output.reshape(*inputs.shape[:-1], -1)


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model."""
    if not hasattr(torch, "float8_e4m3fn"):
        raise NotAppliedError("this torch has no float8")
    names = replace_linear_layers(model, skip, _replacement)
    computes = any(isinstance(module, Fp8Linear) for module in model.modules())
    return Changed(names, () if computes else ("weights only: this device does not compute in float8",))


def _replacement(linear: Linear) -> nn.Module:
    computes = linear.weight.is_cuda and torch.cuda.get_device_capability(linear.weight.device) >= _LEAST_CAPABILITY
    is_aligned = all(size % _ALIGNED == 0 for size in linear.weight.shape)
    return Fp8Linear(linear) if computes and is_aligned else Fp8Weight(linear)


def _rounded(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix in float8 and the scale of each row."""
    most = torch.finfo(torch.float8_e4m3fn).max
    scale = matrix.abs().amax(dim=1).clamp(min=_LEAST_SCALE) / most
    return (matrix / scale[:, None]).clamp(-most, most).to(torch.float8_e4m3fn), scale
