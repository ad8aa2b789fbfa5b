"""int8-static: linear and convolution layers compute in int8, with scales of inputs and outputs from a calibration.

The calibration is a run of the evaluation with the untouched layers, which notes the range of each layer's inputs and
outputs in a file. The layers round their inputs and return floating-point numbers, so any model can have them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import as_linear, is_skipped, put, use_replaced_layers

Range = tuple[float, float]
_LEVELS = 255
_LEAST_SCALE = 1e-8


def record_ranges(model: nn.Module, path: str) -> Callable[[], None]:
    """Note the range of each layer's inputs and outputs at all calls; return what writes them to the file."""
    ranges: dict[str, list[float]] = {}

    def watch(name: str) -> Callable[..., None]:
        def noted(module: nn.Module, inputs: Any, output: Any) -> None:
            known = ranges.setdefault(name, [0.0, 0.0, 0.0, 0.0])
            for place, tensor in ((0, inputs[0]), (2, output)):
                known[place] = min(known[place], float(tensor.min()))
                known[place + 1] = max(known[place + 1], float(tensor.max()))

        return noted

    use_replaced_layers(model)
    for name, module in _layers(model, ()).items():
        module.register_forward_hook(watch(name))

    def write() -> None:
        Path(path).write_text(json.dumps(ranges), encoding="utf-8")

    return write


class StaticInt8(nn.Module):  # type: ignore[misc]
    """A layer whose kernel takes and returns int8; `weight` is computed, for scripts that ask for its type."""

    def __init__(self, module: nn.Module, ranges: tuple[float, float, float, float]) -> None:
        super().__init__()
        self._input = _scale(ranges[0], ranges[1])
        self._output = _scale(ranges[2], ranges[3])
        self.bias = None if module.bias is None else nn.Parameter(module.bias.detach(), requires_grad=False)
        self._settings = _settings(module)
        weight = module.weight.detach()
        scale = weight.flatten(1).abs().amax(dim=1).clamp(min=_LEAST_SCALE) / 127
        shape = (-1, *[1] * (weight.dim() - 1))
        self._packed = self._pack(torch.round(weight / scale.reshape(shape)).to(torch.int8), scale)

    def _pack(self, weight: torch.Tensor, scale: torch.Tensor) -> Any:
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            if self._settings is None:
                return torch.ops.quantized.linear_prepack(quantized, self.bias)
            return torch.ops.quantized.conv2d_prepack(quantized, self.bias, *self._settings)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_tensor(inputs.float(), *self._input, torch.quint8)
        kernel = torch.ops.quantized.linear if self._settings is None else torch.ops.quantized.conv2d
        output: torch.Tensor = kernel(rounded, self._packed, *self._output).dequantize()
        return output.to(inputs.dtype)

    @property
    def weight(self) -> torch.Tensor:
        return self._unpacked().dequantize()

    def _unpacked(self) -> torch.Tensor:
        is_linear = self._settings is None
        unpack = torch.ops.quantized.linear_unpack if is_linear else torch.ops.quantized.conv2d_unpack
        weight: torch.Tensor = unpack(self._packed)[0]
        return weight

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        weight = self._unpacked()
        destination[prefix + "int8_weight"] = weight.int_repr()
        destination[prefix + "scale"] = weight.q_per_channel_scales().float()


def compress(model: nn.Module, skip: Collection[str] = (), *, calibration: str | None = None) -> Changed:
    """Replace linear and two-dimensional convolution layers, by the ranges in the file of a calibration."""
    ranges = _read(calibration)
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        raise NotAppliedError("its kernels run on a CPU alone")
    layers = {name: module for name, module in _layers(model, skip).items() if name in ranges}
    for name, module in layers.items():
        low_in, high_in, low_out, high_out = ranges[name]
        put(model, name, StaticInt8(module, (low_in, high_in, low_out, high_out)).train(module.training))
    if not layers:
        raise NotAppliedError("the calibration called no linear or convolution layer that it fits")
    use_replaced_layers(model)
    return Changed(tuple(layers))


def _read(calibration: str | None) -> Mapping[str, list[float]]:
    if calibration is None:
        raise NotAppliedError("it needs a calibration")
    try:
        ranges: dict[str, list[float]] = json.loads(Path(calibration).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotAppliedError("the calibration left no ranges") from error
    return ranges


def _layers(model: nn.Module, skip: Collection[str]) -> dict[str, nn.Module]:
    """Return the layers that have a static kernel, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if name and not is_skipped(name, skip) and (type(module) is nn.Linear or _is_plain_convolution(module))
    }


def _is_plain_convolution(module: nn.Module) -> bool:
    return type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _settings(module: nn.Module) -> tuple[list[int], list[int], list[int], int] | None:
    """Return the settings of a convolution; None for a linear layer."""
    if as_linear("", module) is not None:
        return None
    convolution: Any = module
    return list(convolution.stride), list(convolution.padding), list(convolution.dilation), convolution.groups


def _scale(low: float, high: float) -> tuple[float, int]:
    """Return the scale and the zero of unsigned int8 for a range, which includes 0."""
    scale = max((high - low) / _LEVELS, _LEAST_SCALE)
    return scale, min(max(round(-low / scale), 0), _LEVELS)
