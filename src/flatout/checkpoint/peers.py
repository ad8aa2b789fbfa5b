"""The ranks of the job, and short messages between them: JSON, in a separate process group, never in the background.

In: torch.distributed as the script has set it up, or nothing, which makes one rank. A separate group (gloo, on the CPU)
keeps these messages separate from the training's collectives at all times.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed

from flatout.checkpoint.problems import CheckpointError

_R = TypeVar("_R")


class Peers:
    """Rank, world size, and the ranks of each host."""

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.world_size, self._group = 0, 1, None
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
            if self.world_size > 1:
                self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        hosts = self.gather(os.uname().nodename)
        self.host_ranks = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        self.is_leader = self.rank == 0
        self.is_host_leader = self.rank == self.host_ranks[0]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`. Every rank must call it; it costs a fraction of a millisecond on one host."""
        if self._group is None:
            return [value]
        text = json.dumps(value).encode()
        size = torch.tensor([len(text)])
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        torch.distributed.all_gather(sizes, size, group=self._group)
        longest = max(int(one) for one in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        torch.distributed.all_gather(texts, mine, group=self._group)
        return [json.loads(ctypes.string_at(one.data_ptr(), int(size))) for one, size in zip(texts, sizes, strict=True)]

    def together(self, function: Callable[[], _R]) -> _R:
        """Return this rank's result of `function`; if it fails on any rank, raise the first failure on all ranks."""
        result, failure = None, None
        error: CheckpointError | OSError | None = None
        try:
            result = function()
        except CheckpointError as caught:
            error, failure = caught, [caught.args[0], caught.hint]
        except OSError as caught:
            error, failure = caught, [str(caught), ""]
        failures = [(rank, one) for rank, one in enumerate(self.gather(failure)) if one is not None]
        if isinstance(error, CheckpointError):
            raise error
        if failures:
            rank, (message, hint) = failures[0]
            where = f"rank {rank}: " if self.world_size > 1 and rank != self.rank else ""
            raise CheckpointError(where + message, hint=hint) from error
        return result  # type: ignore[return-value]
