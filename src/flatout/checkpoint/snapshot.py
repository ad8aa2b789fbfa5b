"""Copy this rank's tensors to host memory, in the layout of the file to be written.

In: items. Out: a `Buffer`, whose bytes no later step changes. On the CPU, the copy is complete when `fill` returns.
From a GPU it goes to pinned memory on a separate stream, which begins when the work queued before is done; the
training's next kernels wait for that stream, and the writer thread waits for its event. The foreground never waits for
the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from flatout.checkpoint.host_buffer import HostBuffer
from flatout.checkpoint.safetensors import COMPLEX, DTYPES, FileLayout, Place, lay_out
from flatout.checkpoint.share import Item


class FileImage:
    """The content of one file: items, their places, and the memory for them."""

    def __init__(self, keys: dict[str, Item], metadata: dict[str, str]) -> None:
        self.layout = _layout(keys, metadata)
        self.index = {key: _described(item) for key, item in keys.items()}
        self.memory = HostBuffer(self.layout.num_bytes, is_pinned=any(item.device == "cuda" for item in keys.values()))
        self.targets = [self._at(place) for place in self.layout.places.values()]

    def fill(self, keys: dict[str, Item], *, non_blocking: bool) -> None:
        sources = [keys[key].local for key in self.layout.places]
        sources = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in sources]
        if sources:
            torch._foreach_copy_(self.targets, sources, non_blocking=non_blocking)

    def buffers(self) -> list[Any]:
        """Return the content of the file, to be written from this memory without a further copy."""
        num_bytes = self.layout.num_bytes
        if num_bytes == 0:
            return [self.layout.header]
        return [self.layout.header, (ctypes.c_ubyte * num_bytes).from_address(self.memory.tensor.data_ptr())]

    def _at(self, place: Place) -> torch.Tensor:
        return self.memory.tensor[place.begin : place.end].view(DTYPES[place.dtype]).view(place.shape)


class Buffer:
    """The host memory for one checkpoint of this rank: a file for the shared folder, and one for the local folder."""

    def __init__(self) -> None:
        self.parts: list[FileImage] = []
        self._described: Any = None
        self._copies: list[tuple[Any, Any]] = []  # for each GPU, the events before and after

    def fill(self, contents: Sequence[dict[str, Item]], metadata: dict[str, str]) -> None:
        """Copy these items. For each file, `contents` maps the keys in it to items."""
        self._allocate(contents, metadata)
        items = [item for keys in contents for item in keys.values()]
        cuda = [item.local for item in items if item.device == "cuda"]
        devices = dict.fromkeys(tensor.device for tensor in cuda)
        streams = [_copy_stream(device) for device in devices]
        self._copies = []
        with torch.no_grad():
            for stream in streams:
                stream.wait_stream(torch.cuda.current_stream(stream.device))
            self._copy(contents, streams)
            for tensor in cuda:  # a tensor that is freed meanwhile keeps its memory until it has been copied
                tensor.record_stream(_copy_stream(tensor.device))
            for stream in streams:
                torch.cuda.current_stream(stream.device).wait_stream(stream)

    def _allocate(self, contents: Sequence[dict[str, Item]], metadata: dict[str, str]) -> None:
        """Have memory for these items: that of the last checkpoint, if it had the same."""
        described = [[(key, item.local.dtype, _described(item)) for key, item in keys.items()] for keys in contents]
        if described == self._described:
            return
        self.parts, self._described = [], None  # free the old memory before asking for the new
        self.parts = [FileImage(keys, metadata) for keys in contents]
        self._described = described

    def _copy(self, contents: Sequence[dict[str, Item]], streams: Sequence[Any]) -> None:
        """Copy the items, those of each GPU on its stream, and record when the copies begin and end."""
        with ExitStack() as copying:
            for stream in streams:
                copying.enter_context(torch.cuda.stream(stream))
            begun = [_record(stream) for stream in streams]
            for part, keys in zip(self.parts, contents, strict=True):
                part.fill(keys, non_blocking=bool(streams))
            self._copies = [(begin, _record(stream)) for begin, stream in zip(begun, streams, strict=True)]

    def wait(self) -> float:
        """Wait until the copy is complete; return the seconds for which it kept a GPU from other work."""
        copying_s = 0.0
        for begun, ended in self._copies:
            with torch.cuda.device(ended.device):  # otherwise this thread would create a context on the first GPU
                ended.synchronize()
                copying_s = max(copying_s, begun.elapsed_time(ended) / 1e3)
        return copying_s


_STREAMS: dict[Any, Any] = {}


def _copy_stream(device: Any) -> Any:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]


def _record(stream: Any) -> Any:
    """Record an event. With `blocking`, a thread that waits for it sleeps, and leaves its core to the training."""
    event = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record(stream)
    return event


def _layout(keys: dict[str, Item], metadata: dict[str, str]) -> FileLayout:
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
