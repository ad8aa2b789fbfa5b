"""prune-channels: remove a quarter of the hidden channels between two layers, without training afterwards.

A channel that nothing but the second layer reads can be removed from both. Such pairs are found where they are certain:
consecutive layers of a `Sequential` with nothing but activations, normalisations, dropout or pooling in between, and
the two layers of a transformer's feed-forward block by their usual names. The channels whose weights are smallest go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import as_linear, is_skipped, use_replaced_layers

SHARE = 0.25  # of the channels that are removed
_BLOCKS = (("linear1", "linear2"), ("fc1", "fc2"), ("lin1", "lin2"), ("wi", "wo"), ("dense_h_to_4h", "dense_4h_to_h"))
_GATED = ("gate_proj", "up_proj", "down_proj")
_POINTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.Identity),
    *(nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Pair(NamedTuple):
    """Layers whose outputs are channels, what is computed on each channel in between, and the layer that reads them."""

    names: tuple[str, ...]
    writers: tuple[Any, ...]
    between: tuple[Any, ...]
    reader: Any
    repeats: int  # inputs of the reader for each channel: more than one after a Flatten


def compress(model: nn.Module, skip: Collection[str] = (), share: float = SHARE) -> Changed:
    """Remove this share of the channels of the model's hidden layers."""
    changed: list[str] = []
    for pair in _pairs(model):
        if any(is_skipped(name, skip) for name in pair.names):
            continue
        _remove(pair, share)
        changed += pair.names
    if not changed:
        raise NotAppliedError("the model has no two layers of which only the second reads the first")
    use_replaced_layers(model)
    return Changed(tuple(dict.fromkeys(changed)), (f"removed {share:.0%} of the channels in between",))


def _remove(pair: Pair, share: float) -> None:
    with torch.no_grad():
        importance = sum(writer.weight.flatten(1).square().sum(1) for writer in pair.writers)
        reads = pair.reader.weight.transpose(0, 1).flatten(1).square().sum(1)
        importance = importance * reads.reshape(-1, pair.repeats).sum(1)
        num_kept = max(round(len(importance) * (1 - share)), 1)
        kept = importance.topk(num_kept).indices.sort().values
        for writer in (*pair.writers, *pair.between):
            _keep_outputs(writer, kept)
        inputs = (kept[:, None] * pair.repeats + torch.arange(pair.repeats, device=kept.device)).flatten()
        _keep_inputs(pair.reader, inputs)


def _keep_outputs(module: Any, kept: torch.Tensor) -> None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = getattr(module, name, None)
        if value is not None:
            _set(module, name, value[kept])
    for name in ("out_features", "out_channels", "num_features"):
        if hasattr(module, name):
            setattr(module, name, len(kept))


def _keep_inputs(module: Any, kept: torch.Tensor) -> None:
    _set(module, "weight", module.weight[:, kept])
    for name in ("in_features", "in_channels"):
        if hasattr(module, name):
            setattr(module, name, len(kept))


def _set(module: Any, name: str, value: torch.Tensor) -> None:
    before = getattr(module, name)
    after = value.detach().clone()
    setattr(module, name, nn.Parameter(after, requires_grad=False) if isinstance(before, nn.Parameter) else after)


def _pairs(model: nn.Module) -> Iterator[Pair]:
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.Sequential):
            yield from _of_sequential(prefix, module)
        for first, second in _BLOCKS:
            writer: Any = getattr(module, first, None)
            reader: Any = getattr(module, second, None)
            if type(writer) is nn.Linear and type(reader) is nn.Linear and writer.out_features == reader.in_features:
                yield Pair((prefix + first, prefix + second), (writer,), (), reader, 1)
        gated = [getattr(module, part, None) for part in _GATED]
        if all(type(part) is nn.Linear for part in gated):
            yield Pair(tuple(prefix + part for part in _GATED), (gated[0], gated[1]), (), gated[2], 1)


def _of_sequential(prefix: str, module: nn.Sequential) -> Iterator[Pair]:
    writer: tuple[str, Any] | None = None
    between: list[Any] = []
    has_flatten = False
    for name, part in module.named_children():
        if _is_layer(part):
            if writer is not None and (pair := _pair(writer, between, part, prefix + name, has_flatten)) is not None:
                yield pair
            writer, between, has_flatten = (prefix + name, part), [], False
        elif type(part) is nn.Flatten:
            has_flatten = True
        elif isinstance(part, _NORMS):
            between.append(part)
        elif not isinstance(part, _POINTWISE):
            writer = None


def _pair(writer: tuple[str, Any], between: list[Any], reader: Any, name: str, has_flatten: bool) -> Pair | None:
    """Return the pair; None if the numbers of channels do not fit."""
    num_channels = len(writer[1].weight)
    num_inputs = reader.weight.shape[1]
    is_convolution = type(writer[1]) is nn.Conv2d
    repeats = num_inputs // num_channels if has_flatten and is_convolution else 1
    if repeats * num_channels != num_inputs:
        return None
    return Pair((writer[0], name), (writer[1],), tuple(between), reader, repeats)


def _is_layer(module: Any) -> bool:
    if type(module) is nn.Conv2d:
        return bool(module.groups == 1)
    return type(module) is nn.Linear and as_linear("", module) is not None
