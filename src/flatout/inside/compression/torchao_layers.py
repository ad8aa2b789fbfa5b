"""What the variants of torchao share: its `quantize_` on the linear layers of a model, where it is installed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import is_skipped, linear_layers, use_replaced_layers


def quantized_by_torchao(model: nn.Module, skip: Collection[str], config_name: str) -> Changed:
    """Quantize the linear layers with the configuration of this name."""
    try:
        from torchao import quantization
    except ImportError as error:
        raise NotAppliedError("torchao is not installed") from error
    config: Any = getattr(quantization, config_name, None)
    if config is None:
        raise NotAppliedError(f"this torchao has no {config_name}")
    names = [linear.name for linear in linear_layers(model, skip)]
    use_replaced_layers(model)
    quantization.quantize_(
        model, config(), filter_fn=lambda module, name: type(module) is nn.Linear and not is_skipped(name, skip)
    )
    changed = [name for name in names if hasattr(model.get_submodule(name).weight, "__tensor_flatten__")]
    if not changed:
        raise NotAppliedError("torchao changed no linear layer")
    return Changed(tuple(changed))
