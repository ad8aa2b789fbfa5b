"""Measure how much each layer's compression alone changes the model's output, on the inputs of its first call.

In: a model, a variant that replaces layers, the first call. Out: a JSON file with the relative error of the output and
the bytes that are saved, by layer. The model itself is left as it was.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.first_model import FirstCall
from flatout.inside.compression.layers import num_bytes, put


def measure_sensitivity(
    model: nn.Module, call: FirstCall, compressed: Callable[[nn.Module], Changed], path: str
) -> Changed:
    """Write the file. `compressed` applies the variant to the copy of the model that it is given."""
    right = list(_tensors(_output(call)))
    other = copy.deepcopy(model)
    names = compressed(other).names
    found = {}
    for name in names:
        before, after = model.get_submodule(name), other.get_submodule(name)
        put(model, name, after)
        try:
            error = _relative_error(list(_tensors(_output(call))), right)
        finally:
            put(model, name, before)
        found[name] = {"error": error, "saved_bytes": num_bytes(before) - num_bytes(after)}
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    return Changed(())


def _output(call: FirstCall) -> Any:
    return call.module.forward(*call.args, **call.kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value.float()
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _relative_error(found: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    size = sum(float(each.square().sum()) for each in right)
    difference = sum(float((one - each).square().sum()) for one, each in zip(found, right, strict=True))
    return float((difference / max(size, 1e-30)) ** 0.5)
