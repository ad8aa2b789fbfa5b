"""Host memory that a checkpoint is copied to: allocated once, used again, and pinned where the copy comes from a GPU.

In: a number of bytes. Out: a `HostBuffer`, whose `tensor` is of uint8. It is mapped here, not taken from torch, whose
allocator of pinned memory rounds up to a power of two and gives nothing back to the system. Huge pages make the first
filling and the pinning cheaper. Forked processes (workers of a DataLoader) do not get it: pinned pages would be copied
at the fork, others one by one at the next filling, which is within the stall.
"""

from __future__ import annotations

import logging
import mmap
import weakref
from contextlib import suppress
from typing import Any

import torch

LOG = logging.getLogger("flatout.checkpoint")
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


class HostBuffer:
    """It is given back, and unpinned before, when nothing refers to it or to its tensor any more."""

    def __init__(self, num_bytes: int, *, is_pinned: bool) -> None:
        """Raises MemoryError. Where memory cannot be pinned it is not, and a warning says so."""
        self.tensor = _mapped(num_bytes)
        if not is_pinned:
            return
        cudart: Any = torch.cuda.cudart()
        if int(cudart.cudaHostRegister(self.tensor.data_ptr(), num_bytes, _PORTABLE)) == 0:
            # Before the memory can be mapped again for something else; at the exit the driver does it.
            weakref.finalize(self, _unpin, cudart, self.tensor).atexit = False
            return
        # The next kernel launched by this thread would report that error: be it one of ours.
        with suppress(RuntimeError):
            torch.ones((), device="cuda")
        try:
            self.tensor = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            LOG.warning(
                "flatout.checkpoint: %.3g GB of host memory cannot be pinned (%s): copies from the GPU take longer",
                num_bytes / 1e9,
                str(error).splitlines()[0],
            )


def _mapped(num_bytes: int) -> torch.Tensor:
    try:
        mapped = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes / 1e9:.3g} GB of host memory for a copy: {error.strerror}") from error
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with suppress(OSError, AttributeError):  # not of every kernel
            mapped.madvise(getattr(mmap, advice))
    return torch.frombuffer(mapped, dtype=torch.uint8)[:num_bytes]


def _unpin(cudart: Any, tensor: torch.Tensor) -> None:
    cudart.cudaHostUnregister(tensor.data_ptr())
