"""Host memory for the copy of a checkpoint: allocated once, reused, and pinned if the copy comes from a GPU.

In: a number of bytes. Out: a `HostBuffer`, whose `tensor` has dtype uint8. The memory is mapped here because torch's
allocator of pinned memory rounds up to a power of two and returns nothing to the system. Huge pages make the first fill
and the pinning cheaper. Forked processes (workers of a DataLoader) do not inherit the memory: pinned pages would be
copied at the fork, and other pages one by one at the next fill, which would lengthen the stall.
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
    """A buffer that is unpinned and freed once nothing refers to it or to its tensor any more."""

    def __init__(self, num_bytes: int, *, is_pinned: bool) -> None:
        """Map the memory, or raise MemoryError. If it cannot be pinned, warn and continue with unpinned memory."""
        self.tensor = _mapped(num_bytes)
        if not is_pinned:
            return
        cudart: Any = torch.cuda.cudart()
        if int(cudart.cudaHostRegister(self.tensor.data_ptr(), num_bytes, _PORTABLE)) == 0:
            # Unpin before the memory can be mapped for something else; at exit, the driver unpins it.
            weakref.finalize(self, _unpin, cudart, self.tensor).atexit = False
            return
        # The next kernel that this thread launches would report the error, so launch one here.
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
        with suppress(OSError, AttributeError):  # not every kernel supports this
            mapped.madvise(getattr(mmap, advice))
    return torch.frombuffer(mapped, dtype=torch.uint8)[:num_bytes]


def _unpin(cudart: Any, tensor: torch.Tensor) -> None:
    cudart.cudaHostUnregister(tensor.data_ptr())
