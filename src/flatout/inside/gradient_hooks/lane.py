"""Reduce buckets one after the other, at the same time as the backward pass.

A hook that needs several collectives for a bucket must begin them in the same order on all ranks. torch's way is to
begin the second in a callback of the first. NCCL calls back at once, but gloo does so from whichever of its threads is
free, so two buckets can change places on one rank alone, and their data are mixed. Here a bucket's collectives are
called in sequence: on a GPU on a separate stream, on a CPU by a separate thread, with a process group that no
other code uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

Reduce = Callable[[], object]


class StreamLane:
    """Runs on a CUDA stream; the host does not wait."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def run(self, buffer: torch.Tensor, reduce: Reduce) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._device])
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            reduce()
            future.set_result(buffer)  # those who wait for it wait for this stream
        return future


class ThreadLane:
    """Runs in one thread, on a separate process group."""

    def __init__(self, group: Any) -> None:
        ranks = dist.get_process_group_ranks(group)
        self.group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._waiting: SimpleQueue[tuple[Any, torch.Tensor, Reduce]] = SimpleQueue()
        threading.Thread(target=self._work, name="flatout-gradients", daemon=True).start()

    def run(self, buffer: torch.Tensor, reduce: Reduce) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.put((future, buffer, reduce))
        return future

    def _work(self) -> None:
        while True:
            future, buffer, reduce = self._waiting.get()
            try:
                with torch.no_grad():
                    reduce()
            except Exception as error:  # noqa: BLE001 - raised again where the future is waited for
                future.set_exception(error)
            else:
                future.set_result(buffer)
            del future, buffer, reduce


Lane = StreamLane | ThreadLane
_LANES: dict[Any, Lane] = {}  # by the process group of a DistributedDataParallel


def use_lane(group: Any, lane: Any) -> None:
    """Reduce the buckets of this group on the given lane; for measurements without a network."""
    _LANES[group] = lane


def lane_of(ddp: Any) -> Lane:
    """Return the lane of this DistributedDataParallel's group. All its ranks must call this together."""
    group = ddp.process_group
    if group not in _LANES:
        device = next(ddp.parameters()).device
        _LANES[group] = StreamLane(group, device) if device.type == "cuda" else ThreadLane(group)
    return _LANES[group]
