"""The variants of torchao and bitsandbytes, with stand-ins of the same names and arguments.

`benchmarks/gpu_compress.py` runs the real packages: torchao 0.18 and bitsandbytes 0.50.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from flatout.inside.compression import torchao_layers
from flatout.inside.compression.changed import NotAppliedError
from flatout.inside.compression.layers import Linear
from flatout.inside.compression.variants import compress

calls: list[tuple[Any, list[str]]] = []  # configurations and layers that torchao was given


@dataclass
class Int4WeightOnlyConfig:
    group_size: int = 128
    set_inductor_config: bool = True
    int4_packing_format: str = "plain"


@dataclass
class PrototypeInt4WeightOnlyConfig:
    group_size: int = 128


@dataclass
class Float8DynamicActivationFloat8WeightConfig:
    granularity: Any = None
    set_inductor_config: bool = True


class PerRow:
    pass


class QuantizedTensor(torch.Tensor):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None


def quantize_(model: nn.Module, config: Any, filter_fn: Callable[[nn.Module, str], bool]) -> None:
    chosen = [name for name, module in model.named_modules() if filter_fn(module, name)]
    calls.append((config, chosen))
    for name in chosen:
        layer: Any = model.get_submodule(name)
        layer.weight = nn.Parameter(layer.weight.detach().as_subclass(QuantizedTensor), requires_grad=False)


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    quantization, int4 = ModuleType("torchao.quantization"), ModuleType("torchao.prototype.quantization.int4")
    for each in (quantize_, PerRow, Int4WeightOnlyConfig, Float8DynamicActivationFloat8WeightConfig):
        setattr(quantization, each.__name__, each)
    int4.PrototypeInt4WeightOnlyConfig = PrototypeInt4WeightOnlyConfig  # type: ignore[attr-defined]
    package, prototype = ModuleType("torchao"), ModuleType("torchao.prototype.quantization")
    package.quantization, prototype.int4 = quantization, int4  # type: ignore[attr-defined]
    names = ("torchao", "torchao.quantization", "torchao.prototype", prototype.__name__, int4.__name__)
    modules = (package, quantization, ModuleType("torchao.prototype"), prototype, int4)
    for name, module in zip(names, modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    calls.clear()
    return quantization


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """Return what moves the layers, as the variants see them, to a GPU of a compute capability."""

    def at(capability: tuple[int, int]) -> None:
        original = torchao_layers.linear_layers

        def moved(*arguments: Any) -> Iterator[Linear]:
            for linear in original(*arguments):
                weight: Any = SimpleNamespace(
                    device=torch.device("cuda"), dtype=linear.weight.dtype, shape=linear.weight.shape
                )
                yield linear._replace(weight=weight)

        monkeypatch.setattr(torchao_layers, "linear_layers", moved)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return at


def layers(*widths: int, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    return nn.Sequential(*(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths))).to(dtype)


@pytest.mark.parametrize(("widths", "group"), [((256, 128, 16), 128), ((256, 192, 16), 64), ((64, 96, 16), 32)])
def test_int4_on_a_gpu_takes_the_packing_of_torchs_own_kernel(
    torchao: ModuleType, gpu: Any, widths: tuple[int, ...], group: int
) -> None:
    """The default packing needs another package; the compiler's settings, which are the whole process's, stay."""
    gpu((9, 0))
    changed = compress(layers(*widths), "torchao-int4-weights")
    assert (changed.names, changed.notes) == (("0", "1"), (f"in groups of {group} inputs",))
    config = Int4WeightOnlyConfig(group, set_inductor_config=False, int4_packing_format="tile_packed_to_4d")
    assert calls == [(config, ["0", "1"])]


def test_int4_on_a_cpu_takes_the_prototype_for_cpus(torchao: ModuleType) -> None:
    """Its kernel fails for a number of outputs that is no multiple of 16."""
    compress(layers(256, 128, 16, 8, dtype=torch.float32), "torchao-int4-weights")
    assert calls == [(PrototypeInt4WeightOnlyConfig(128), ["0", "1"])]


def test_int4_leaves_layers_whose_inputs_are_no_groups(torchao: ModuleType, gpu: Any) -> None:
    gpu((9, 0))
    assert compress(layers(128, 24, 16), "torchao-int4-weights").names == ("0",)
    with pytest.raises(NotAppliedError, match=r"inputs in groups of 32, .* first one has 24 inputs and 16 outputs"):
        compress(layers(24, 16), "torchao-int4-weights")
    assert len(calls) == 1


def test_options_that_an_older_torchao_does_not_have_are_left_out(torchao: Any, gpu: Any) -> None:
    @dataclass
    class Older:
        group_size: int = 128

    gpu((9, 0))
    torchao.Int4WeightOnlyConfig = Older
    compress(layers(128, 128), "torchao-int4-weights")
    assert calls == [(Older(128), ["0"])]


def test_float8_has_a_scale_for_each_row(torchao: ModuleType, gpu: Any) -> None:
    gpu((8, 9))
    assert compress(layers(64, 32, 24, 32), "torchao-fp8-dynamic").names == ("0",)  # 24 is no multiple of 16
    config, names = calls[0]
    assert (type(config.granularity), config.set_inductor_config, names) == (PerRow, False, ["0"])


@pytest.mark.parametrize(
    ("variant", "capability", "dtype", "reason"),
    [
        ("torchao-fp8-dynamic", (8, 6), torch.bfloat16, r"compute capability 8\.9 or higher, but this one has 8\.6"),
        ("torchao-fp8-dynamic", (9, 0), torch.float32, "needs weights in bfloat16, but the model's are in float32"),
        ("torchao-int4-weights", (7, 5), torch.bfloat16, r"compute capability 8\.0 or higher, but this one has 7\.5"),
        ("torchao-int4-weights", (8, 0), torch.float16, "needs weights in bfloat16, but the model's are in float16"),
    ],
)
def test_what_the_gpu_or_the_model_lacks_is_said(
    torchao: ModuleType, gpu: Any, variant: str, capability: tuple[int, int], dtype: torch.dtype, reason: str
) -> None:
    gpu(capability)
    with pytest.raises(NotAppliedError, match=reason):
        compress(layers(64, 64, dtype=dtype), variant)
    assert calls == []


def test_float8_without_a_gpu_is_not_applied(torchao: ModuleType) -> None:
    with pytest.raises(NotAppliedError, match="needs an NVIDIA GPU, but the model is on the cpu"):
        compress(layers(64, 64), "torchao-fp8-dynamic")


class Params(nn.Parameter):  # type: ignore[misc]
    """As `Int8Params` and `Params4bit`: converted when it is moved from the CPU to a device."""

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, **options: Any) -> Params:
        made: Params = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.__dict__.update(options)
        return made

    def to(self, *where: Any, **options: Any) -> Params:
        assert self.device.type == "cpu"
        self.from_dtype = self.dtype
        return self


def bitsandbytes_layer(parameter: str) -> type[nn.Linear]:
    class Layer(nn.Linear):  # type: ignore[misc]
        def __init__(
            self, input_features: int, output_features: int, bias: bool = True, device: Any = None, **options: Any
        ) -> None:
            super().__init__(input_features, output_features, bias, device)
            self.weight = Params(self.weight.data, False, **options)

        def _apply(self, function: Any, recurse: bool = True) -> Any:
            self.weight = self.weight.to("cpu")
            return self

    Layer.__name__ = parameter
    return Layer


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("bitsandbytes-int8", {"has_fp16_weights": False}),
        ("bitsandbytes-nf4", {"quant_type": "nf4", "compute_dtype": torch.bfloat16}),
    ],
)
def test_bitsandbytes_converts_the_weights_in_their_own_type(
    monkeypatch: pytest.MonkeyPatch, variant: str, options: dict[str, Any]
) -> None:
    """A new layer is in float32, so that weights which are copied into it would be converted from there."""
    package = ModuleType("bitsandbytes")
    package.nn = SimpleNamespace(  # type: ignore[attr-defined]
        Linear8bitLt=bitsandbytes_layer("Linear8bitLt"), Linear4bit=bitsandbytes_layer("Linear4bit")
    )
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model, right = layers(32, 16, 8), layers(32, 16, 8)
    model.load_state_dict(right.state_dict())
    assert compress(model, variant).names == ("0", "1")
    for place in (0, 1):
        layer: Any = model[place]
        assert layer.weight.__dict__ == {**options, "from_dtype": torch.bfloat16}
        assert torch.equal(layer.weight.data, right[place].weight)
        assert torch.equal(layer.bias, right[place].bias)
