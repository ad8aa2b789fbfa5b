"""Copies to the host: what is copied, on the CPU; and in which order GPUs are asked for it, which a stand-in notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout.checkpoint import snapshot
from flatout.checkpoint.safetensors import DTYPES
from flatout.checkpoint.share import Item
from flatout.checkpoint.snapshot import Buffer


def item(name: str, local: Any) -> Item:
    shape = tuple(local.shape)
    return Item(
        name=name, local=local, shape=shape, offsets=(0,) * len(shape), device=local.device.type, kind="parameter"
    )


def unusual() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) for dtype in DTYPES.values()}
    pairs = torch.randn(4, 3, dtype=torch.complex64)
    return tensors | {
        "complex": pairs,
        "conjugated": pairs.conj(),
        "transposed": torch.randn(4, 3).T,
        "every second": torch.randn(9)[::2],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "negated": pairs.conj().imag,  # lazily, by a bit of its own
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
    }


def test_all_kinds_of_tensors_are_copied_and_later_changes_are_not() -> None:
    tensors = unusual()
    expected = {
        name: torch.view_as_real(tensor.resolve_conj()).clone() if tensor.is_complex() else tensor.clone()
        for name, tensor in tensors.items()
    }
    buffer = Buffer()
    buffer.fill([{name: item(name, tensor) for name, tensor in tensors.items()}], {})
    for tensor in tensors.values():
        tensor.untyped_storage().fill_(0)
    assert buffer.wait() == 0.0
    (part,) = buffer.parts
    for target, name in zip(part.targets, part.layout.places, strict=True):
        assert target.dtype == expected[name].dtype and target.shape == expected[name].shape
        assert torch.equal(target.double(), expected[name].double()), name


class Device:
    """Streams and events that note what is asked of them, in `calls`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current: dict[str, Any] = {}

    def stream(self, device: Any, name: str) -> Any:
        made = SimpleNamespace(device=device, name=f"{name}{device.index}")
        made.wait_stream = lambda other: self.calls.append(f"{made.name} waits for {other.name}")
        return made

    def current_stream(self, device: Any) -> Any:
        return self.current.setdefault(str(device), self.stream(device, "training"))

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current[str(stream.device)] = self.current_stream(stream.device), stream
        yield
        self.current[str(stream.device)] = before

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        self.calls.append(f"thread on {device}")
        yield

    def event(self, *, enable_timing: bool, blocking: bool) -> Any:
        assert enable_timing and blocking
        made = SimpleNamespace(device=None)

        def record(stream: Any) -> None:
            made.device = stream.device
            self.calls.append(f"event on {stream.name}")

        made.record = record
        made.synchronize = lambda: self.calls.append(f"waited for {made.device}")
        made.elapsed_time = lambda _: 250.0 * (1 + made.device.index)  # ms
        return made

    def tensor(self, device: str) -> Any:
        made = SimpleNamespace(dtype=torch.float32, shape=(4,), device=torch.device(device), is_complex=lambda: False)
        made.record_stream = lambda stream: self.calls.append(f"{device} is kept for {stream.name}")
        return made


def test_the_training_waits_for_the_copies_and_the_copies_for_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    cuda = SimpleNamespace(
        Stream=lambda of: device.stream(of, "copying"),
        Event=device.event,
        current_stream=device.current_stream,
        stream=device.on,
        device=device.device,
    )

    def copy(targets: Any, sources: Any, *, non_blocking: bool) -> None:
        streams = sorted(stream.name for stream in device.current.values())
        device.calls.append(f"copy of {len(sources)} on {' and '.join(streams)}, {non_blocking=}")

    monkeypatch.setattr(snapshot.torch, "cuda", cuda)
    monkeypatch.setattr(snapshot.torch, "_foreach_copy_", copy)
    monkeypatch.setattr(
        snapshot, "HostBuffer", lambda num_bytes, is_pinned: pinned.append(is_pinned) or memory(num_bytes)
    )
    monkeypatch.setattr(snapshot, "_STREAMS", {})
    pinned: list[bool] = []

    def memory(num_bytes: int) -> Any:
        return SimpleNamespace(tensor=torch.empty(num_bytes, dtype=torch.uint8))

    tensors = {"a": device.tensor("cuda:0"), "b": device.tensor("cuda:1"), "step": torch.tensor(3.0)}
    buffer = Buffer()
    buffer.fill([{name: item(name, tensor) for name, tensor in tensors.items()}], {})
    assert pinned == [True]
    assert device.calls == [
        "copying0 waits for training0",
        "copying1 waits for training1",
        "event on copying0",
        "event on copying1",
        "copy of 3 on copying0 and copying1, non_blocking=True",
        "event on copying0",
        "event on copying1",
        "cuda:0 is kept for copying0",
        "cuda:1 is kept for copying1",
        "training0 waits for copying0",
        "training1 waits for copying1",
    ]
    device.calls.clear()
    assert buffer.wait() == 0.5  # of the slower
    assert device.calls == ["thread on cuda:0", "waited for cuda:0", "thread on cuda:1", "waited for cuda:1"]
