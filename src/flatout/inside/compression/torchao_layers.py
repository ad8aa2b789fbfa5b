"""What the variants of torchao share: its `quantize_` on the linear layers of a model, where it is installed.

Only layers that the configuration fits are given to torchao: an error half-way would leave a model of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import Linear, linear_layers, use_replaced_layers

Capability = tuple[int, int]


def plain_layers(model: nn.Module, skip: Collection[str]) -> list[Linear]:
    """Return torch's own linear layers: torchao leaves others alone. Raises NotAppliedError if there is none."""
    linears = [linear for linear in linear_layers(model, skip) if type(linear.module) is nn.Linear]
    if not linears:
        raise NotAppliedError("the model has no linear layer that it fits")
    return linears


def quantized_by_torchao(
    model: nn.Module, linears: Sequence[Linear], config: Any, notes: tuple[str, ...] = ()
) -> Changed:
    """Quantize these layers of the model with a configuration of torchao."""
    from torchao.quantization import quantize_

    wanted = {id(linear.module) for linear in linears}
    use_replaced_layers(model)
    quantize_(model, config, filter_fn=lambda module, _: id(module) in wanted)
    changed = [linear.name for linear in linears if _is_quantized(model.get_submodule(linear.name))]
    if not changed:
        raise NotAppliedError("torchao changed no linear layer")
    return Changed(tuple(changed), notes)


def torchao_config(name: str, **options: Any) -> Any:
    """Return torchao's configuration of this name, without the options that the installed version does not have."""
    try:
        from torchao import quantization
    except ImportError as error:
        raise NotAppliedError("torchao is not installed") from error
    return configured(getattr(quantization, name, None), name, **options)


def cpu_prototype_config(name: str, **options: Any) -> Any:
    """Return the configuration of this name of torchao's prototypes of int4."""
    try:
        from torchao.prototype.quantization import int4
    except ImportError as error:
        raise NotAppliedError("torchao is not installed, or has no int4 weights for CPUs") from error
    return configured(getattr(int4, name, None), name, **options)


def per_row() -> Any:
    """Return what asks torchao for a scale for each row."""
    try:
        from torchao.quantization import PerRow
    except ImportError as error:
        raise NotAppliedError("torchao is not installed, or has no scales for single rows") from error
    return PerRow()


def configured(config: Any, name: str, **options: Any) -> Any:
    """Make a configuration. It leaves the compiler's settings alone, which also change layers that stay as they are."""
    if config is None:
        raise NotAppliedError(f"this torchao has no {name}")
    all_options = {"set_inductor_config": False, **options}
    known = {field.name for field in fields(config)}
    return config(**{name: value for name, value in all_options.items() if name in known})


def check_capability(linears: Sequence[Linear], least: Capability, what: str) -> None:
    """Raise NotAppliedError if the layers are not on a GPU of this compute capability."""
    device = linears[0].weight.device
    if device.type != "cuda":
        raise NotAppliedError(f"{what} needs an NVIDIA GPU, but the model is on the {device.type}")
    capability = torch.cuda.get_device_capability(device)
    if capability < least:
        raise NotAppliedError(
            f"{what} needs a GPU of compute capability {_version(least)} or higher, but this one has "
            f"{_version(capability)}"
        )


def in_bfloat16(linears: Sequence[Linear], what: str) -> list[Linear]:
    """Return the layers whose weights are in bfloat16. Raises NotAppliedError if there is none."""
    fitting = [linear for linear in linears if linear.weight.dtype == torch.bfloat16]
    if not fitting:
        kind = str(linears[0].weight.dtype).removeprefix("torch.")
        raise NotAppliedError(f"{what} needs weights in bfloat16, but the model's are in {kind}")
    return fitting


def fitting_sizes(linears: Sequence[Linear], fits: Callable[[Linear], bool], what: str) -> list[Linear]:
    """Return the layers of sizes that fit. Raises NotAppliedError if there is none."""
    fitting = [linear for linear in linears if fits(linear)]
    if not fitting:
        outputs, inputs = linears[0].weight.shape
        raise NotAppliedError(f"{what}, but no layer has them; the first one has {inputs} inputs and {outputs} outputs")
    return fitting


def _is_quantized(module: nn.Module) -> bool:
    return hasattr(module.weight, "__tensor_flatten__")


def _version(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
