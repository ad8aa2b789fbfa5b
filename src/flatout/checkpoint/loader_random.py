"""The random state around a data loader: after its iterator is made on a resume, and in its worker processes.

A loader draws from torch's random state when its iterator is made. A training run that resumes in the middle of an
epoch makes an iterator that the uninterrupted run did not make there, so the random state is restored once more after
it. Workers draw for augmentation and dropout in the data set. torchdata's StatefulDataLoader saves the state of the
data set in each worker; for a data set without a state, the worker's random state is used as its state.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset

from flatout.checkpoint.values import numpy

_WORDS = struct.Struct("<625I")  # of Python's generator: 624 words and a position


def restore_after_next_iterator(loader: Any, restore: Callable[[], object]) -> None:
    """Call `restore` once, after the loader has made its next iterator.

    This works only for loaders derived from torch's, and for the position of one.
    """
    if hasattr(loader, "after_next_iterator"):
        loader.after_next_iterator(restore)
        return
    loader = getattr(loader, "base_dataloader", loader)  # of accelerate, which wraps the one that makes iterators
    if not hasattr(loader, "_get_iterator"):
        return
    loader.__dict__.pop("_get_iterator", None)  # of an earlier resume
    make_iterator = loader._get_iterator

    def make_and_restore() -> Any:
        del loader._get_iterator  # the instance's; the class's remains
        iterator = make_iterator()
        restore()
        return iterator

    loader._get_iterator = make_and_restore


def keep_worker_random(loader: Any) -> bool:
    """Let the loader save its workers' random state, as the state of its data set; return whether that was possible.

    It is not possible for an IterableDataset, whose state is its position, or for a data set that already has a state.
    """
    loader = getattr(loader, "base_dataloader", loader)
    dataset = getattr(loader, "dataset", None)
    is_stateful_loader = hasattr(loader, "state_dict") and hasattr(loader, "_get_iterator")
    if dataset is None or not is_stateful_loader or not getattr(loader, "num_workers", 0):
        return False
    if isinstance(dataset, IterableDataset) or hasattr(dataset, "state_dict") or hasattr(dataset, "load_state_dict"):
        return False
    try:
        dataset.state_dict = worker_random_state
        dataset.load_state_dict = set_worker_random_state
    except (AttributeError, TypeError):  # it does not accept attributes
        return False
    return True


def worker_random_state() -> dict[str, Any]:
    """Return the random state of this process in a few small values, because it is sent with every batch."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": state_bytes(torch.get_rng_state()),
        "python": [version, _WORDS.pack(*words), gauss],
    }
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = numpy().random.get_state()
        state["numpy"] = [str(name), keys.tobytes(), int(position), int(has_gauss), float(cached)]
    return state


def set_worker_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state_tensor(state["torch"]))
    version, words, gauss = state["python"]
    random.setstate((version, _WORDS.unpack(words), gauss))
    if "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy().random.set_state((name, numpy().frombuffer(keys, dtype="uint32"), position, has_gauss, cached))


def state_bytes(state: torch.Tensor) -> bytes:
    """Return the state of one of torch's generators as bytes, which need no tensor in a checkpoint."""
    return ctypes.string_at(state.data_ptr(), state.numel())


def state_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
