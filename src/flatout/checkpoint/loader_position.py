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

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from flatout.checkpoint.epoch_order import EpochOrder, OrderParts
from flatout.checkpoint.loader_kinds import check_position
from flatout.checkpoint.loader_random import state_bytes, state_tensor
from flatout.checkpoint.problems import CheckpointError

_VERSION = 1


class LoaderPosition:
    """Saves and continues the position of one loader. Raise CheckpointError if the loader cannot be continued."""

    def __init__(self, loader: Any) -> None:
        check_position(loader)
        self.loader: Any = loader
        self._parts = OrderParts(loader)
        self._order: EpochOrder | None = None  # of the newest iterator
        self._resumed: Mapping[str, Any] | None = None  # a state that no batch was yielded from yet
        self._base: Any = None  # the random state from which the newest iterator drew the seed of its workers
        self._starts_kept_workers = False  # the newest iterator stands for one whose workers had stayed
        self._after_next_iterator: Callable[[], object] | None = None
        loader._get_iterator = _make_by(self, loader)  # in place of an earlier Checkpointer's

    def state_dict(self) -> dict[str, Any]:
        if self._order is None or (self._resumed is not None and not self._order.num_yielded):
            return dict(self._resumed) if self._resumed is not None else self._state_between_epochs(None)
        order = self._order
        if order.is_complete:
            return self._state_between_epochs(order.start)
        start = order.start if order.start is not None else self._parts.start()
        num_batches = order.num_dropped + order.num_yielded
        return start | {
            "version": _VERSION,
            "num_batches": num_batches,
            "batch_size": self.loader.batch_size,
            "checksum": order.checksum,
            "base": self._base,
            "num_used": order.num_used,
        }

    def close(self) -> None:
        """Let go of the loader: its workers end with the script's own last use of it."""
        if self.loader is not None:
            self.loader.__dict__.pop("_get_iterator", None)
        self.loader = None

    @property
    def divides_among_ranks(self) -> bool:
        """Whether any number of ranks can share the rest of an epoch."""
        return self._parts.distributed is not None

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
            self._parts.restore(state)

    def after_next_iterator(self, call: Callable[[], object]) -> None:
        """Call `call` once after the loader has made its next iterator, if that one continues an epoch.

        The uninterrupted training made no iterator there. At the beginning of an epoch, it made one too.
        """
        self._after_next_iterator = call

    def _state_between_epochs(self, last: Mapping[str, Any] | None) -> dict[str, Any]:
        last_epoch = last["epoch"] if last is not None else None
        return self._parts.start() | {
            "version": _VERSION,
            "num_batches": 0,
            "last_epoch": last_epoch,
            "keeps_workers": last is not None and self.loader.persistent_workers,
        }

    def make_iterator(self) -> Any:
        """Make an iterator whose indices are watched; the loader keeps its own sampler."""
        loader = self.loader
        self._forget_used_state()
        self._order = None
        name = "batch_sampler" if loader._auto_collation else "sampler"
        sampler = loader.__dict__[name]
        loader.__dict__[name] = _WatchedSampler(sampler, self)
        now = _base_state(loader)
        is_within_epoch = self._resumed is not None and self._resumed["num_batches"] > 0
        if self._resumed is not None and is_within_epoch:
            _set_base_state(loader, self._resumed["base"])
        self._base = _base_state(loader)
        self._starts_kept_workers = self._resumed is not None and self._resumed.get("keeps_workers", False)
        try:
            iterator = type(loader)._get_iterator(loader)
        finally:
            loader.__dict__[name] = sampler
        if is_within_epoch and loader.generator is None:
            _set_base_state(loader, now)
        order: EpochOrder | None = self._order  # as `begin_epoch` has set it
        if order is not None:
            order.belongs_to(iterator)
        if self._after_next_iterator is not None and is_within_epoch:
            self._after_next_iterator()
        self._after_next_iterator = None
        return iterator

    def begin_epoch(self, sampler: Any) -> Iterator[Any]:
        persistent = self._order.iterator if self._order is not None else None
        self._forget_used_state()
        self._order = EpochOrder(self._parts, sampler, self._resumed, before=self._take_back_seed)
        if persistent is not None:
            self._order.belongs_to(persistent)  # its workers remain, and it begins another epoch
        return self._order

    def _take_back_seed(self) -> None:
        """Take back the draw of the workers' seed: workers that had stayed drew none before this epoch's order."""
        if self._starts_kept_workers:
            self._starts_kept_workers = False
            _set_base_state(self.loader, self._base)

    def _forget_used_state(self) -> None:
        """Forget the saved state once a batch was yielded from it: the next iterator begins a new epoch."""
        if self._order is not None and self._order.num_yielded:
            self._resumed = None


# A loader may hold its iterator, which ends its workers when it is freed. Neither holds the position, which holds the
# loader: the garbage collector would have to find such a cycle, and would end the workers late, in any thread.


def _make_by(position: LoaderPosition, loader: Any) -> Callable[[], Any]:
    """Return what makes the loader's iterators: the position, while there is one."""
    of_position, of_loader = weakref.ref(position), weakref.ref(loader)

    def make_iterator() -> Any:
        position = of_position()
        if position is not None:
            return position.make_iterator()
        present: Any = of_loader()
        return type(present)._get_iterator(present)

    return make_iterator


class _WatchedSampler:
    """Stands for a sampler in an iterator: the position begins each of its epochs."""

    def __init__(self, sampler: Any, position: LoaderPosition) -> None:
        self._sampler = sampler
        self._position = weakref.ref(position)

    def __iter__(self) -> Iterator[Any]:
        position = self._position()
        return iter(self._sampler) if position is None else position.begin_epoch(self._sampler)

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
