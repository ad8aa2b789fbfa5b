"""Find the linear layers of a model, replace them, and count the bytes of what a model stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from flatout.inside.compression.changed import NotAppliedError

Make = Callable[["Linear"], "nn.Module | None"]


class Linear(NamedTuple):
    """A linear layer, whether it is torch's or the transposed one of GPT-2 in transformers."""

    name: str
    module: nn.Module
    weight: torch.Tensor  # (outputs, inputs)
    bias: torch.Tensor | None


class Replacement(nn.Module):  # type: ignore[misc]
    """A layer in the place of a linear one. `weight` is computed, for scripts that ask for its type or shape."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape

    def dense_weight(self) -> torch.Tensor:
        raise NotImplementedError

    @property
    def weight(self) -> torch.Tensor:
        return self.dense_weight()


def linear_layers(model: nn.Module, skip: Collection[str] = ()) -> Iterator[Linear]:
    """Yield the linear layers inside the model, except those in `skip` and within modules in `skip`.

    A subclass of torch's layer is left alone: others read its weight, as `MultiheadAttention` does.
    """
    for name, module in list(model.named_modules()):
        if not name or is_skipped(name, skip):
            continue
        linear = as_linear(name, module)
        if linear is not None and linear.weight.is_floating_point():
            yield linear


def as_linear(name: str, module: nn.Module) -> Linear | None:
    if type(module) is nn.Linear:
        return Linear(name, module, module.weight.detach(), _detached(module.bias))
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        weight: Any = module.weight
        bias: Any = module.bias
        return Linear(name, module, weight.detach().t(), _detached(bias))
    return None


def is_skipped(name: str, skip: Collection[str]) -> bool:
    return any(name == each or name.startswith(each + ".") for each in skip)


def replace_linear_layers(model: nn.Module, skip: Collection[str], make: Make) -> tuple[str, ...]:
    """Replace each linear layer for which `make` returns a layer; return their names.

    Raises NotAppliedError if none is replaced.
    """
    replaced = []
    new_modules: dict[int, nn.Module] = {}  # a layer that a model uses in two places stays one
    for linear in linear_layers(model, skip):
        module = new_modules.get(id(linear.module))
        if module is None:
            module = make(linear)
        if module is None:
            continue
        module.train(linear.module.training)
        new_modules[id(linear.module)] = module
        put(model, linear.name, module)
        replaced.append(linear.name)
    if not replaced:
        raise NotAppliedError("the model has no linear layer that it fits")
    use_replaced_layers(model)
    return tuple(replaced)


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the module of that name."""
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)


def use_replaced_layers(model: nn.Module) -> None:
    """Let torch's encoder layers call their linear layers, instead of a fused kernel that reads plain weights."""
    if any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()):
        torch.backends.mha.set_fastpath_enabled(False)


def num_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters and buffers, and of what replaced layers store; shared ones count once."""
    storages: dict[int, int] = {}
    for tensor in _tensors(model.state_dict(keep_vars=True)):
        storages[_address(tensor)] = _tensor_bytes(tensor)
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # torchao's tensors hold plain ones
        names, _ = flatten()
        return sum(_tensor_bytes(getattr(tensor, name)) for name in names)
    return int(tensor.numel() * tensor.element_size())


def _address(tensor: torch.Tensor) -> int:
    if hasattr(tensor, "__tensor_flatten__"):
        return id(tensor)
    return tensor.data_ptr() or id(tensor)


def _detached(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()
