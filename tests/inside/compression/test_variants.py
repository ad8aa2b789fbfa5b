"""The variants on small models in this process: what they compute, what they store, and which modules they change."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from flatout.inside.compression import apply as apply_module
from flatout.inside.compression import memory_peak
from flatout.inside.compression.apply import install_compression
from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.first_model import FirstModel
from flatout.inside.compression.layers import num_bytes
from flatout.inside.compression.memory_peak import MemoryPeak
from flatout.inside.compression.variants import compress
from flatout.inside.protocol import GPU_PEAK, RESIDENT_PEAK, RESIDENT_PEAK_WITH_START, Variable
from flatout.records.compression import MemoryKind


class Classifier(nn.Module):
    """Linear layers between others, and an encoder whose fused kernel would read their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        encoded = self.encoder(torch.relu(self.first(inputs * scale)))
        return self.head(encoded.mean(1))


INPUTS = torch.randn(8, 5, 24, generator=torch.Generator().manual_seed(0))
SCALE = torch.ones(1)


@pytest.fixture(autouse=True)
def fast_path() -> Iterator[None]:
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier().eval()


@torch.no_grad()
def answers(model: nn.Module) -> torch.Tensor:
    output: torch.Tensor = model(INPUTS, scale=SCALE)
    return output


def error(model: nn.Module) -> float:
    right = answers(classifier())
    return float((answers(model) - right).norm() / right.norm())


def test_int8_dynamic_stores_a_quarter_and_computes_nearly_the_same() -> None:
    model = classifier()
    changed = compress(model, "int8-dynamic")
    assert changed.names == ("first", "encoder.linear1", "encoder.linear2", "head")
    assert 1e-4 < error(model) < 0.03
    dense = sum(layer.weight.numel() for layer in (classifier().first, classifier().head)) + 2 * 32 * 64
    outputs = 32 + 64 + 32 + 10  # a scale of four bytes for each
    assert num_bytes(classifier()) - num_bytes(model) == 3 * dense - 4 * outputs


def test_int8_weights_are_stored_and_loaded() -> None:
    model, other = classifier(), Classifier().eval()
    for each in (model, other):
        compress(each, "int8-dynamic")
    assert not torch.equal(answers(model), answers(other))
    other.load_state_dict(model.state_dict())
    assert torch.equal(answers(model), answers(other))


def test_bf16_takes_and_returns_float32() -> None:
    model = classifier()
    changed = compress(model, "bf16")
    assert (answers(model).dtype, len(changed.names)) == (torch.float32, 8)
    assert 1e-4 < error(model) < 0.03
    assert num_bytes(model) * 2 == num_bytes(classifier())


@pytest.mark.parametrize("variant", ["int8-dynamic", "bf16"])
def test_modules_that_are_left_out_stay_as_they_are(variant: str) -> None:
    model = classifier()
    changed = compress(model, variant, skip=["encoder", "head"])
    assert changed.names == ("first",)
    assert model.head.weight.dtype == model.encoder.linear1.weight.dtype == torch.float32
    assert type(model.head) is nn.Linear
    assert 0 < error(model) < 0.03


@pytest.mark.parametrize("variant", ["int8-dynamic", "bf16"])
def test_a_model_without_a_layer_that_fits_is_not_changed(variant: str) -> None:
    with pytest.raises(NotAppliedError):
        compress(nn.Sequential(nn.ReLU()), variant)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that asks for a variant, runs a script, and returns what was reported."""
    at_exit: list[Any] = []
    monkeypatch.setattr(apply_module.EXIT_HANDLERS, "at_exit", at_exit.append)
    original = nn.Module.__call__

    def run(script: Any, **asked: Any) -> dict[str, Any]:
        remove = install_compression(tmp_path, {Variable.COMPRESS: json.dumps(asked)})
        assert remove is not None
        try:
            script()
        finally:
            remove()
        for callback in at_exit:
            callback()
        files = list(tmp_path.glob("compression-*.json"))
        return json.loads(files[0].read_text()) if files else {}

    yield run
    assert nn.Module.__call__ is original


def test_the_model_is_changed_before_its_first_call_and_reported(report: Any, tmp_path: Path) -> None:
    model, outputs = classifier(), []
    with torch.no_grad():
        found = report(
            lambda: outputs.append(model(INPUTS, scale=SCALE)), variant="int8-dynamic", save=str(tmp_path / "w.pt")
        )
    assert float((outputs[0] - answers(classifier())).norm()) > 0
    assert (found["applied"], found["reason"], found["names"][0], found["num_modules"]) == (True, None, "first", 8)
    assert found["bytes_before"] == num_bytes(classifier())
    assert found["bytes_after"] == num_bytes(model)
    assert found["memory_bytes"] > 1 << 20
    assert found["memory_kind"] == "resident_peak"
    (tmp_path / "again").mkdir()
    torch.save(model.state_dict(), tmp_path / "again" / "w.pt")
    assert (tmp_path / "w.pt").read_bytes() == (tmp_path / "again" / "w.pt").read_bytes()


def test_the_untouched_model_is_reported_alike(report: Any) -> None:
    model = classifier()
    found = report(lambda: answers(model), variant="none")
    assert (found["applied"], found["names"], found["bytes_after"]) == (True, [], num_bytes(classifier()))
    assert torch.equal(answers(model), answers(classifier()))


def test_a_script_that_trains_is_left_alone(report: Any) -> None:
    model = Classifier()
    assert report(lambda: model(INPUTS, scale=SCALE), variant="bf16") == {}
    assert model.head.weight.dtype == torch.float32


def test_a_part_that_is_called_directly_stands_for_its_model(report: Any) -> None:
    model = classifier()
    found = report(lambda: model.first(INPUTS), variant="int8-dynamic")
    assert len(found["names"]) == 4


def test_a_model_that_it_does_not_fit_is_not_applied_and_runs(report: Any) -> None:
    model = nn.Sequential(nn.Conv1d(24, 2, 1)).eval()
    found = report(lambda: model(INPUTS.transpose(1, 2)), variant="int8-dynamic")
    assert (found["applied"], found["reason"]) == (False, "the model has no linear layer that it fits")


def test_an_error_of_a_variant_is_not_applied(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(apply_module, "compress", broken)
    model = classifier()
    found = report(lambda: answers(model), variant="bf16")
    assert (found["applied"], found["reason"]) == (False, "RuntimeError: no kernel")


def test_nothing_is_left_after_the_first_call() -> None:
    original, found = nn.Module.__call__, []
    looker = FirstModel(lambda model, call: found.append(model))
    looker.install()
    held = nn.Module.__call__
    model = classifier()
    nn.ReLU()(INPUTS)
    answers(model)
    assert nn.Module.__call__ is original
    with torch.no_grad():
        held(model, INPUTS, scale=SCALE)  # a loop that holds the old one, as `generate` of transformers does
    assert found == [model]


def test_random_generators_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that draws samples after the change draws those that it draws without one; the new heads draw theirs."""
    drawn = {0: torch.tensor([5]), 1: torch.tensor([6])}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: drawn[device].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: drawn[device].copy_(state + 10))
    model = classifier()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    compress(model, "prune-heads")
    assert torch.equal(torch.get_rng_state(), before)
    assert [int(each) for each in drawn.values()] == [15, 16]  # each was set to what it was


class Gpu:
    """A GPU whose conversion takes 5 s after Python has asked for it, and that needs 900 bytes during it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.left_s, self.peak = 100.0, 0.0, 0
        monkeypatch.setattr(apply_module, "_device", lambda model: "cuda")
        monkeypatch.setattr(apply_module.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(apply_module, "compress", self.convert)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)

    def convert(self, *_: object) -> Changed:
        self.now_s, self.left_s, self.peak = self.now_s + 1.0, 5.0, 900
        return Changed(("first",))

    def wait(self) -> None:
        self.now_s, self.left_s = self.now_s + self.left_s, 0.0

    def reset(self, device: int) -> None:
        self.peak = 300


def test_on_a_gpu_the_conversion_is_waited_for_and_its_copies_are_not_counted(
    report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gpu(monkeypatch).left_s = 7.0  # of what the script asked for before
    model = classifier()
    found = report(lambda: answers(model), variant="bf16")
    assert found["convert_s"] == 6.0
    assert (found["memory_kind"], found["memory_bytes"]) == ("gpu_peak", 2 * 300)


def touch(num_bytes: int) -> None:
    """Use so much memory of the kernel for a moment. A tensor might get memory that the process has not given back."""
    with mmap.mmap(-1, num_bytes) as held:
        for page in range(0, num_bytes, mmap.PAGESIZE):
            held[page] = 1


def test_the_memory_of_a_process_is_its_peak_since_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    touch(80 << 20)
    peak = MemoryPeak("cpu")
    start = peak.num_bytes() or 0
    touch(40 << 20)
    assert 35 << 20 < (peak.num_bytes() or 0) - start < 80 << 20
    assert peak.kind == RESIDENT_PEAK


def test_where_a_peak_cannot_be_forgotten_it_is_called_that_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, mode: str, **options: Any) -> Any:
        raise PermissionError(path)

    monkeypatch.setattr(memory_peak, "open", refused, raising=False)
    assert MemoryPeak("cpu").kind == RESIDENT_PEAK_WITH_START
    assert set(get_args(MemoryKind)) == {GPU_PEAK, RESIDENT_PEAK, RESIDENT_PEAK_WITH_START}
