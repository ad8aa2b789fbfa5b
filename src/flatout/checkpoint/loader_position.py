"""The position of a torch DataLoader in its epoch: saved with a checkpoint, and continued after a kill.

In: a loader over a map-style data set whose order can be repeated (`loader_kinds`), and later a saved state. Out:
`state_dict`, and a first iterator after `load_state_dict` that yields the batches of the epoch that were not yielded
before. The order is not stored but drawn again, from the random states, the epoch number and the samplers' states with
which the epoch began; the indices of batches that were yielded are drawn and dropped, without loading them. A checksum
of the dropped ones shows whether the order is the same. Batches that workers had loaded ahead and that the script had
not received count as not yielded.

It does not restore the random state of workers: their augmentation draws other numbers than without the kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from flatout.checkpoint.epoch_order import EpochOrder, distributed_sampler, restore_samplers, start_of
from flatout.checkpoint.loader_kinds import check_position
from flatout.checkpoint.loader_random import state_bytes, state_tensor
from flatout.checkpoint.problems import CheckpointError

_VERSION = 1


class LoaderPosition:
    """Saves and continues the position of one loader. Raise CheckpointError if the loader cannot be continued."""

    def __init__(self, loader: Any) -> None:
        check_position(loader)
        self.loader = loader
        self._order: EpochOrder | None = None  # of the newest iterator
        self._resumed: Mapping[str, Any] | None = None  # a state that no batch was yielded from yet
        self._base: Any = None  # the random state from which the newest iterator drew the seed of its workers
        self._after_next_iterator: Callable[[], object] | None = None
        loader.__dict__.pop("_get_iterator", None)  # of an earlier Checkpointer
        loader._get_iterator = self._make_iterator

    def state_dict(self) -> dict[str, Any]:
        if self._order is None or (self._resumed is not None and not self._order.num_yielded):
            return dict(self._resumed) if self._resumed is not None else self._state_between_epochs(None)
        order = self._order
        if order.is_complete:
            return self._state_between_epochs(order.start)
        start = order.start if order.start is not None else start_of(self.loader)
        num_batches = order.num_dropped + order.num_yielded
        return start | {
            "version": _VERSION,
            "num_batches": num_batches,
            "batch_size": self.loader.batch_size,
            "checksum": order.checksum,
            "base": self._base,
            "num_used": order.num_used,
        }

    @property
    def divides_among_ranks(self) -> bool:
        """Whether any number of ranks can share the rest of an epoch."""
        return distributed_sampler(self.loader) is not None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["version"] != _VERSION:
            raise CheckpointError(
                f"the position of `data` has the version {state['version']}, and this Flatout reads version {_VERSION}",
                hint="use the Flatout that saved it, or a newer one",
            )
        self._order = None
        self._resumed = state
        self.loader.__dict__["_iterator"] = None  # workers that persist have loaded ahead in another order
        if not state["num_batches"]:
            restore_samplers(self.loader, state)

    def after_next_iterator(self, call: Callable[[], object]) -> None:
        """Call `call` once after the loader has made its next iterator, if that one continues an epoch.

        The uninterrupted training made no iterator there. At the beginning of an epoch, it made one too.
        """
        self._after_next_iterator = call

    def _state_between_epochs(self, last: Mapping[str, Any] | None) -> dict[str, Any]:
        last_epoch = last["epoch"] if last is not None else None
        return start_of(self.loader) | {"version": _VERSION, "num_batches": 0, "last_epoch": last_epoch}

    def _make_iterator(self) -> Any:
        """Make an iterator whose indices are watched; the loader keeps its own sampler."""
        loader = self.loader
        self._forget_used_state()
        self._order = None
        name = "batch_sampler" if loader._auto_collation else "sampler"
        sampler = loader.__dict__[name]
        loader.__dict__[name] = _WatchedSampler(sampler, self._begin_epoch)
        now = _base_state(loader)
        is_within_epoch = self._resumed is not None and self._resumed["num_batches"] > 0
        if self._resumed is not None and is_within_epoch:
            _set_base_state(loader, self._resumed["base"])
        self._base = _base_state(loader)
        try:
            iterator = type(loader)._get_iterator(loader)
        finally:
            loader.__dict__[name] = sampler
        if is_within_epoch and loader.generator is None:
            _set_base_state(loader, now)
        order: EpochOrder | None = self._order  # as `_begin_epoch` has set it
        if order is not None:
            order.belongs_to(iterator)
        if self._after_next_iterator is not None and is_within_epoch:
            self._after_next_iterator()
        self._after_next_iterator = None
        return iterator

    def _begin_epoch(self, sampler: Any) -> Iterator[Any]:
        persistent = self._order.iterator if self._order is not None else None
        self._forget_used_state()
        self._order = EpochOrder(self.loader, sampler, self._resumed)
        if persistent is not None:
            self._order.belongs_to(persistent)  # its workers remain, and it begins another epoch
        return self._order

    def _forget_used_state(self) -> None:
        """Forget the saved state once a batch was yielded from it: the next iterator begins a new epoch."""
        if self._order is not None and self._order.num_yielded:
            self._resumed = None


class _WatchedSampler:
    """Stands for a sampler in an iterator: calls `begin` at each of its epochs."""

    def __init__(self, sampler: Any, begin: Callable[[Any], Iterator[Any]]) -> None:
        self._sampler = sampler
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


def _base_state(loader: Any) -> bytes:
    """Return the random state from which a new iterator draws the seed of its workers."""
    return state_bytes(torch.get_rng_state() if loader.generator is None else loader.generator.get_state())


def _set_base_state(loader: Any, state: bytes) -> None:
    if loader.generator is None:
        torch.set_rng_state(state_tensor(state))
    else:
        loader.generator.set_state(state_tensor(state))
