"""A copy of this rank's tensors in host memory, laid out as the file that it becomes.

In: items. Out: a `Snapshot`, whose bytes no later step changes. The copy is made before `save` returns on the CPU; from
a GPU it goes to pinned memory on a stream of its own, which the training's next kernels wait for, and the writer thread
waits for its event. Two buffers are kept and used in turn: one is written while the next is filled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from flatout.checkpoint.safetensors import COMPLEX, DTYPES, Layout, Place, lay_out
from flatout.checkpoint.share import Item


class Part:
    """The content of one file: items, where they lie, and memory for them."""

    def __init__(self, keys: dict[str, Item], metadata: dict[str, str]) -> None:
        self.layout = _layout(keys, metadata)
        self.index = {key: _described(item) for key, item in keys.items()}
        is_pinned = any(item.device == "cuda" for item in keys.values())
        self.memory = torch.empty(self.layout.num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        self.targets = [self._at(place) for place in self.layout.places.values()]

    def fill(self, keys: dict[str, Item]) -> None:
        sources = [keys[key].local for key in self.layout.places]
        sources = [torch.view_as_real(one) if one.is_complex() else one for one in sources]
        if sources:
            torch._foreach_copy_(self.targets, sources, non_blocking=True)

    def buffers(self) -> list[Any]:
        """What the file holds, to be written from this memory as it is."""
        num_bytes = self.layout.num_bytes
        if num_bytes == 0:
            return [self.layout.header]
        return [self.layout.header, (ctypes.c_ubyte * num_bytes).from_address(self.memory.data_ptr())]

    def _at(self, place: Place) -> torch.Tensor:
        return self.memory[place.begin : place.end].view(DTYPES[place.dtype]).view(place.shape)


class Buffer:
    """Host memory for one checkpoint of this rank: a file for the shared folder, and one more for the local one."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._described: Any = None
        self._event: Any = None

    def fill(self, contents: Sequence[dict[str, Item]], metadata: dict[str, str]) -> None:
        """Copy these items; `contents` has a dictionary of items, by their keys in the file, for each file."""
        described = [[(key, item.local.dtype, _described(item)) for key, item in one.items()] for one in contents]
        if described != self._described:
            self.parts = []  # the old memory is free before the new is asked for
            self.parts = [Part(one, metadata) for one in contents]
            self._described = described
        cuda = [item.local for one in contents for item in one.values() if item.device == "cuda"]
        with torch.no_grad():
            if not cuda:
                self._event = None
                for part, keys in zip(self.parts, contents, strict=True):
                    part.fill(keys)
                return
            device = cuda[0].device
            stream = _copy_stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for part, keys in zip(self.parts, contents, strict=True):
                    part.fill(keys)
                self._event = torch.cuda.Event()
                self._event.record(stream)
            for tensor in cuda:
                tensor.record_stream(stream)
            torch.cuda.current_stream(device).wait_stream(stream)

    def wait(self) -> None:
        """Until the copy has arrived."""
        if self._event is not None:
            self._event.synchronize()


_STREAMS: dict[Any, Any] = {}


def _copy_stream(device: Any) -> Any:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]


def _layout(keys: dict[str, Item], metadata: dict[str, str]) -> Layout:
    shapes: dict[str, tuple[torch.dtype, Sequence[int]]] = {}
    for key, item in keys.items():
        dtype, shape = item.local.dtype, tuple(item.local.shape)
        shapes[key] = (COMPLEX[dtype], (*shape, 2)) if dtype in COMPLEX else (dtype, shape)
    return lay_out(shapes, metadata)


def _described(item: Item) -> dict[str, Any]:
    return {
        "name": item.name,
        "shape": list(item.shape),
        "offsets": list(item.offsets),
        "sizes": list(item.local.shape),
        "dtype": str(item.local.dtype).removeprefix("torch."),
        "device": item.device,
        "own": item.is_own,
        "kind": item.kind,
    }
