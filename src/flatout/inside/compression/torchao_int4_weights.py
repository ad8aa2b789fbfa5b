"""torchao-int4-weights: torchao's int4 weights in groups, computing in the type of the inputs, if it is installed.

On GPUs it is `Int4WeightOnlyConfig` in the packing of torch's own kernel, which needs compute capability 8.0 and
bfloat16; torchao's default packing needs another package. On CPUs it is torchao's prototype for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.layers import Linear
from flatout.inside.compression.torchao_layers import (
    check_capability,
    cpu_prototype_config,
    fitting_sizes,
    in_bfloat16,
    plain_layers,
    quantized_by_torchao,
    torchao_config,
)

WHAT = "torchao's kernel for int4 weights"
LEAST_CAPABILITY = (8, 0)
PACKING = "tile_packed_to_4d"
CPU_OUTPUTS = 16
GROUPS = (128, 64, 32)  # inputs that share a scale: torchao's usual number, and the smaller ones that it offers


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Quantize the linear layers of the model."""
    torchao_config("Int4WeightOnlyConfig")  # says if torchao is missing, whatever the device
    linears = plain_layers(model, skip)
    if linears[0].weight.device.type == "cpu":
        return _on_cpu(model, linears)
    check_capability(linears, LEAST_CAPABILITY, WHAT)
    linears, group = _grouped(in_bfloat16(linears, WHAT))
    config = torchao_config("Int4WeightOnlyConfig", group_size=group, int4_packing_format=PACKING)
    return quantized_by_torchao(model, linears, config, _notes(group))


def _on_cpu(model: nn.Module, linears: Sequence[Linear]) -> Changed:
    of_size = f"{WHAT} on CPUs needs outputs in multiples of {CPU_OUTPUTS}"
    linears = fitting_sizes(linears, lambda linear: linear.weight.shape[0] % CPU_OUTPUTS == 0, of_size)
    linears, group = _grouped(linears)
    config = cpu_prototype_config("PrototypeInt4WeightOnlyConfig", group_size=group)
    return quantized_by_torchao(model, linears, config, _notes(group))


def _grouped(linears: Sequence[Linear]) -> tuple[list[Linear], int]:
    """Return the largest group into which the inputs of each layer divide, or the smallest and the layers that do."""
    widths = [linear.weight.shape[1] for linear in linears]
    group = next((group for group in GROUPS if all(width % group == 0 for width in widths)), GROUPS[-1])

    def fits(linear: Linear) -> bool:
        return bool(linear.weight.shape[1] % group == 0)

    return fitting_sizes(linears, fits, f"{WHAT} needs inputs in groups of {group}"), group


def _notes(group: int) -> tuple[str, ...]:
    return (f"in groups of {group} inputs",)
