"""int8-dynamic: linear layers compute in int8; the scale of their inputs is found at each call.

On a CPU the kernels are those of torch's quantized engine, on a GPU `torch._int_mm`, which needs more than 16 rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.int8_scales import per_row_int8
from flatout.inside.compression.layers import Linear, Replacement, replace_linear_layers

_LEAST_ROWS_ON_GPU = 17


class Int8DynamicOnCpu(Replacement):
    """The weight is in the form of the CPU's kernel, and is stored as int8 with a scale for each output."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        weight, scale = per_row_int8(linear.weight.float())
        bias = linear.bias
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        self._packed = self._pack(weight, scale)

    def _pack(self, weight: torch.Tensor, scale: torch.Tensor) -> Any:
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch is to drop quantized tensors, and has no other fast kernel yet
            quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(quantized, self.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output = torch.ops.quantized.linear_dynamic(inputs.float(), self._packed, False)
        return output.to(inputs.dtype)

    def dense_weight(self) -> torch.Tensor:
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return weight.dequantize()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        destination[prefix + "int8_weight"] = weight.int_repr()
        destination[prefix + "scale"] = weight.q_per_channel_scales().float()

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        weight, scale = state.pop(prefix + "int8_weight"), state.pop(prefix + "scale")
        super()._load_from_state_dict(state, prefix, *others)
        self._packed = self._pack(weight, scale)


class Int8DynamicOnGpu(Replacement):
    """The weight is int8 with a scale for each output; few rows are computed with the dense weight."""

    int8_weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        weight, scale = per_row_int8(linear.weight)
        self.register_buffer("int8_weight", weight)
        self.register_buffer("scale", scale)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias, requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        if len(rows) < _LEAST_ROWS_ON_GPU:
            return functional.linear(inputs, self.dense_weight().to(inputs.dtype), self.bias)
        int8_rows, row_scale = per_row_int8(rows)
        product = torch._int_mm(int8_rows, self.int8_weight.t())
        output = product * row_scale[:, None].float() * self.scale.float()
        if self.bias is not None:
            output = output + self.bias
        return output.to(inputs.dtype).reshape(*inputs.shape[:-1], -1)

    def dense_weight(self) -> torch.Tensor:
        return self.int8_weight.to(self.scale.dtype) * self.scale[:, None]


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Replace the linear layers of the model."""
    return Changed(replace_linear_layers(model, skip, _replacement))


def _replacement(linear: Linear) -> nn.Module | None:
    device = linear.weight.device.type
    if device == "cuda":
        is_aligned = all(size % 8 == 0 for size in linear.weight.shape)
        return Int8DynamicOnGpu(linear) if is_aligned else None
    if device != "cpu":
        raise NotAppliedError(f"there is no int8 kernel for {device}")
    if torch.backends.quantized.engine in ("none", None):
        raise NotAppliedError("this torch has no quantized engine for its CPU")
    return Int8DynamicOnCpu(linear)
