"""Variants on a convolutional network and on a layer like Llama's: what they change, store and compute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inside.compression.models import IMAGES, VECTORS, decoder, network
from tests.inside.compression.test_variants import INPUTS, SCALE, answers, classifier, error
from torch import nn

from flatout.inside.compression.changed import NotAppliedError
from flatout.inside.compression.first_model import FirstCall
from flatout.inside.compression.int8_scales import per_row_int8
from flatout.inside.compression.int8_static import record_ranges
from flatout.inside.compression.layers import num_bytes
from flatout.inside.compression.prune_heads import FewerHeads
from flatout.inside.compression.sensitivity import measure_sensitivity
from flatout.inside.compression.two_four import pruned
from flatout.inside.compression.variants import MODULES, compress


@pytest.fixture(autouse=True)
def fast_path() -> Iterator[None]:
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@torch.no_grad()
def of_network(model: nn.Module) -> torch.Tensor:
    output: torch.Tensor = model(IMAGES)
    return output


def network_error(model: nn.Module) -> float:
    right = of_network(network())
    return float((of_network(model) - right).norm() / right.norm())


@pytest.mark.parametrize(
    ("variant", "bits", "most_error"), [("int8-weights", 8, 0.02), ("int4-weights", 4, 0.2), ("fp8", 8, 0.1)]
)
def test_stored_weights_take_their_bits_and_compute_nearly_the_same(variant: str, bits: int, most_error: float) -> None:
    model = network()
    assert compress(model, variant).names == ("6", "8")
    assert 1e-4 < network_error(model) < most_error
    weights, outputs = 64 * 288 + 10 * 64, 64 + 10
    extra = 4 * outputs if bits == 8 else 2 * 2 * weights // 32
    assert num_bytes(network()) - num_bytes(model) == 4 * weights - weights * bits // 8 - extra


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_weight_goes_to_the_nearest_of_the_levels_of_its_row(dtype: torch.dtype) -> None:
    """By NumPy, in 64 bits. A row of zeros stays one, also where its scale has no number in 16 bits."""
    matrix = torch.randn(8, 4096, generator=torch.Generator().manual_seed(0)).to(dtype)
    matrix[0] = 0.0
    levels, scale = per_row_int8(matrix)
    assert scale.dtype == dtype
    exact = matrix.double().numpy() / np.maximum(scale.double().numpy(), 1e-12)[:, None]
    distance = np.abs(levels.double().numpy() - exact.clip(-127, 127))
    assert distance.max() <= 0.5 + 1e-4
    assert not levels[0].any()


def test_int8_weights_have_a_kernel_for_bfloat16() -> None:
    model = network()
    compress(model, "int8-weights")
    model = model.to(torch.bfloat16)
    dense = network().to(torch.bfloat16)
    images = IMAGES.to(torch.bfloat16)
    with torch.no_grad():
        right = dense(images).float()
        assert float((model(images).float() - right).norm() / right.norm()) < 0.03


def test_int4_leaves_layers_whose_inputs_are_no_groups() -> None:
    with pytest.raises(NotAppliedError, match="no linear layer that it fits"):
        compress(nn.Sequential(nn.Linear(24, 8)), "int4-weights")


def test_int8_static_needs_the_ranges_of_a_calibration(tmp_path: Path) -> None:
    model, ranges = network(), str(tmp_path / "ranges.json")
    with pytest.raises(NotAppliedError, match="it needs a calibration"):
        compress(network(), "int8-static")
    with pytest.raises(NotAppliedError, match="the calibration left no ranges"):
        compress(network(), "int8-static", calibration=ranges)
    write = record_ranges(model, ranges)
    assert torch.equal(of_network(model), of_network(network()))
    write()
    changed = network()
    assert compress(changed, "int8-static", calibration=ranges).names == ("0", "3", "6", "8")
    assert 1e-3 < network_error(changed) < 0.05
    assert num_bytes(changed) < num_bytes(network()) / 3
    kept = network()
    assert compress(kept, "int8-static", ["0", "3"], calibration=ranges).names == ("6", "8")


def test_a_quarter_of_the_channels_goes_where_nothing_else_reads_them() -> None:
    model = network()
    assert compress(model, "prune-channels").names == ("0", "3", "6", "8")
    shapes = [tuple(model[place].weight.shape) for place in (0, 1, 3, 6, 8)]
    assert shapes == [(12, 1, 3, 3), (12,), (24, 12, 3, 3), (48, 24 * 9), (10, 48)]
    assert of_network(model).shape == (8, 10)


def test_channels_without_weight_are_those_that_go() -> None:
    """A quarter of the channels is never read: without them the model computes the same."""
    model, same = network(), network()
    with torch.no_grad():
        for each in (model, same):
            each[8].weight[:, ::4] = 0.0
    compress(model, "prune-channels", skip=["0", "3"])
    assert model[6].weight.shape == (48, 288)
    assert torch.allclose(of_network(model), of_network(same), atol=1e-5)


def test_channels_and_heads_of_a_transformer() -> None:
    model = classifier()
    assert compress(model, "prune-channels").names == ("encoder.linear1", "encoder.linear2")
    assert compress(model, "prune-heads").names == ("encoder.self_attn",)
    assert answers(model).shape == (8, 10)
    assert model.encoder.linear1.out_features == 48
    assert 0.001 < error(model) < 0.7


def test_heads_that_are_kept_compute_what_they_computed() -> None:
    """With all heads kept the layer computes as torch's does, with masks too."""
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    mine = FewerHeads(attention, torch.arange(4))
    inputs = torch.randn(3, 6, 32)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[:, 4:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    for masks in ({}, {"key_padding_mask": padding}, {"attn_mask": causal}, {"attn_mask": causal, "is_causal": True}):
        given: dict[str, Any] = masks
        right, _ = attention(inputs, inputs, inputs, need_weights=False, **given)
        assert torch.allclose(mine(inputs, inputs, inputs, **given)[0], right, atol=1e-5)


@pytest.mark.parametrize(("variant", "num_changed"), [("prune-heads", 4), ("prune-channels", 3)])
def test_a_layer_with_the_names_of_a_llama(variant: str, num_changed: int) -> None:
    model, before = decoder(), decoder()
    changed = compress(model, variant)
    assert len(changed.names) == num_changed
    assert num_bytes(model) < num_bytes(before)
    with torch.no_grad():
        right, found = before(VECTORS), model(VECTORS)
        assert found.shape == right.shape
        assert 0.001 < float((found - right).norm() / right.norm()) < 0.9


def test_keys_that_several_queries_share_keep_their_heads() -> None:
    with pytest.raises(NotAppliedError, match="no attention whose heads can be removed"):
        compress(decoder(num_key_value_heads=2), "prune-heads")


def test_two_of_four_weights_are_0() -> None:
    weight = torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.1, 0.2, -0.3, -0.4]])
    assert torch.equal(pruned(weight), torch.tensor([[0.0, -4.0, 3.0, 0.0, 0.0, 0.0, -0.3, -0.4]]))
    if not torch.cuda.is_available():
        with pytest.raises(NotAppliedError, match=r"on GPUs of compute capability 8\.0"):
            compress(network(), "2:4")


def test_an_export_that_is_not_to_be_kept_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = network()
    with torch.no_grad():
        compress(model, "onnx", call=FirstCall(model, (IMAGES,), {}))
    assert network_error(model) < 1e-5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("variant", ["onnx", "onnx-int8"])
def test_a_model_runs_as_a_session_of_onnx_runtime(variant: str, tmp_path: Path) -> None:
    model, file = classifier(), tmp_path / "model.onnx"
    with torch.no_grad():
        changed = compress(model, variant, call=FirstCall(model, (INPUTS,), {"scale": SCALE}), save=str(file))
        assert (changed.names, changed.stored_bytes) == (("",), file.stat().st_size)
        assert error(model) < (1e-5 if variant == "onnx" else 0.05)
        assert error(model) > (0 if variant == "onnx" else 1e-3)
        assert model(INPUTS[:3], scale=SCALE).shape == (3, 10)


def test_a_call_that_has_no_export_is_not_applied() -> None:
    model = classifier()
    with pytest.raises(NotAppliedError, match="whose inputs are tensors"):
        compress(model, "onnx", call=FirstCall(model, ([1, 2],), {}))
    with pytest.raises(NotAppliedError, match="no module can be kept"):
        compress(model, "onnx", ["head"], call=FirstCall(model, (INPUTS,), {}))


@pytest.mark.parametrize("variant", [name for name in MODULES if name.startswith(("torchao", "bitsandbytes"))])
def test_what_is_not_installed_is_not_applied(variant: str) -> None:
    with pytest.raises(NotAppliedError):
        compress(network(), variant)


def test_the_sensitivity_of_each_layer_is_measured_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    """The layer whose weights have one large outlier per row loses the most in four bits."""
    model, file = network(), tmp_path / "sensitivity.json"
    with torch.no_grad():
        model[6].weight[:, 0] = 30.0
        model[6].weight[:, 1] = -30.0
        right = of_network(model)
        asked = FirstCall(model, (IMAGES,), {})
        changed = measure_sensitivity(model, asked, lambda other: compress(other, "int4-weights"), str(file))
    found = json.loads(file.read_text())
    assert (changed.names, list(found)) == ((), ["6", "8"])
    assert found["6"]["error"] > 3 * found["8"]["error"] > 0
    assert found["8"]["saved_bytes"] == 4 * 640 - 640 // 2 - 4 * 640 // 32
    assert torch.equal(of_network(model), right)
