"""The indices of one epoch of a DataLoader, from its beginning or from a saved position.

In: a loader, the sampler that gives its batches of indices, and what was saved: what the epoch's order depends on, and
the number of batches that were yielded. Out: the batches of indices that follow. If the number of ranks has changed,
what all ranks together have left of the epoch is divided among the present ones. Raises CheckpointError if the order
is no longer the same.
"""

from __future__ import annotations

import logging
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from flatout.checkpoint.loader_random import set_worker_random_state, state_bytes, state_tensor, worker_random_state
from flatout.checkpoint.problems import CheckpointError
from flatout.sample_order import has_state, samplers_of, whole_order

LOG = logging.getLogger("flatout.checkpoint")
_START = ("random", "generators", "samplers", "epoch", "num_replicas", "num_samples")  # see `OrderParts.start`


class OrderParts:
    """What the order of a loader is made by. It does not hold the loader, which may hold its iterator."""

    def __init__(self, loader: Any) -> None:
        self.samplers = samplers_of(loader)
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last
        self.most_ahead = (loader.prefetch_factor or 1) * max(
            loader.num_workers, 1
        )  # batches drawn before they are used
        generators = [getattr(part, "generator", None) for part in (loader, *self.samplers)]
        unique = {id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}
        self.generators = list(unique.values())  # that are drawn from, besides the global one

    @property
    def distributed(self) -> Any:
        """The DistributedSampler, if batches are made of its samples alone; None otherwise."""
        is_batched = len(self.samplers) == 2 and type(self.samplers[0]) is BatchSampler
        is_distributed = isinstance(self.samplers[-1], DistributedSampler)
        return self.samplers[-1] if is_batched and is_distributed else None

    def start(self) -> dict[str, Any]:
        """Return what the order of an epoch that begins now depends on."""
        distributed = self.distributed
        return {
            "random": worker_random_state(),
            "generators": [state_bytes(generator.get_state()) for generator in self.generators],
            "samplers": [sampler.state_dict() for sampler in self.samplers if has_state(sampler)],
            "epoch": None if distributed is None else distributed.epoch,
            "num_replicas": None if distributed is None else distributed.num_replicas,
            "num_samples": None if distributed is None else len(distributed.dataset),
        }

    def restore(self, start: Mapping[str, Any]) -> None:
        """Restore the generators and the samplers that have a state."""
        for generator, state in zip(self.generators, start["generators"], strict=False):
            generator.set_state(state_tensor(state))
        with_state = [sampler for sampler in self.samplers if has_state(sampler)]
        for sampler, state in zip(with_state, start["samplers"], strict=False):
            sampler.load_state_dict(state)


class EpochOrder:
    """The indices of one epoch, from its beginning or from a saved position."""

    def __init__(
        self,
        parts: OrderParts,
        sampler: Any,
        resumed: Mapping[str, Any] | None,
        *,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Set `before`, which is called before the first indices are drawn."""
        self._before = before
        self._parts = parts
        self._sampler = sampler
        self._resumed = resumed
        self._indices: Iterator[Any] | None = None  # None until the first are drawn: some samplers draw all at once
        self._iterator: weakref.ref[Any] | None = None
        self._num_drawn = 0
        self._num_yielded = 0  # as last seen, for an iterator that is gone
        self._is_exhausted = False
        self._checksums: deque[int] = deque([0], maxlen=parts.most_ahead + 2)  # after each of the last batches drawn
        self.start: dict[str, Any] | None = None
        self.num_dropped = 0
        self.num_used = 0  # samples of the epoch, of all ranks, before those of this division among ranks
        self._num_batches: int | None = None  # None: as many as the sampler has

    def belongs_to(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)

    @property
    def iterator(self) -> Any:
        return self._iterator() if self._iterator is not None else None

    @property
    def num_yielded(self) -> int:
        """Batches that the script has received in this iterator."""
        iterator = self.iterator
        return self._num_yielded if iterator is None else int(iterator._num_yielded)

    @property
    def is_complete(self) -> bool:
        num_batches = self.num_dropped + self.num_yielded
        with suppress(TypeError, NotImplementedError):
            return num_batches >= (len(self._sampler) if self._num_batches is None else self._num_batches)
        return self._is_exhausted and self.num_yielded >= self._num_drawn

    @property
    def checksum(self) -> int:
        """The checksum of all batches that were yielded in this epoch."""
        num_ahead = self._num_drawn - self.num_yielded
        return self._checksums[-1 - num_ahead]

    def __iter__(self) -> EpochOrder:
        return self

    def __next__(self) -> Any:
        if self._indices is None:
            self._indices = self._begin()
        try:
            indices = next(self._indices)
        except StopIteration:
            self._is_exhausted = True
            self._see_yielded()
            raise
        self._num_drawn += 1
        self._checksums.append(_checksum(indices, self._checksums[-1]))
        self._see_yielded()
        return indices

    def _see_yielded(self) -> None:
        """Note the batches yielded: an iterator asks for the next indices while it yields a batch."""
        iterator = self.iterator
        if iterator is not None:
            self._num_yielded = min(iterator._num_yielded + 1, self._num_drawn)

    def _begin(self) -> Iterator[Any]:
        self._before()
        resumed = self._resumed
        if resumed is None or (not resumed["num_batches"] and not self._is_empty_rest(resumed)):
            self.start = self._parts.start()
            return iter(self._sampler)
        if not resumed["num_batches"]:
            return iter(())
        self.start = {name: resumed[name] for name in _START}
        now = worker_random_state()
        distributed = self._parts.distributed
        epoch_of_script = None if distributed is None else distributed.epoch
        if distributed is not None and epoch_of_script != resumed["epoch"]:
            _warn_of_epoch(distributed.epoch, resumed["epoch"])
            distributed.epoch = resumed["epoch"]
        set_worker_random_state(resumed["random"])
        self._parts.restore(resumed)
        try:
            if distributed is not None and (resumed["num_used"] or distributed.num_replicas != resumed["num_replicas"]):
                return self._rest_divided(resumed, distributed)
            return self._rest(resumed)
        finally:
            set_worker_random_state(now)
            if distributed is not None:
                distributed.epoch = epoch_of_script

    def _is_empty_rest(self, resumed: Mapping[str, Any]) -> bool:
        """Whether the script begins the epoch again that was complete when it was saved: it counts epochs itself."""
        distributed = self._parts.distributed
        return distributed is not None and resumed["last_epoch"] == distributed.epoch > 0

    def _rest(self, resumed: Mapping[str, Any]) -> Iterator[Any]:
        indices: Iterator[Any] = iter(self._sampler)
        checksum = 0
        for number in range(resumed["num_batches"]):
            try:
                checksum = _checksum(next(indices), checksum)
            except StopIteration:
                raise _changed(f"its epoch now has {number} batches, and {resumed['num_batches']} were used") from None
        if checksum != resumed["checksum"]:
            raise _changed(f"the first {resumed['num_batches']} batches of the epoch are now others")
        self.num_dropped = resumed["num_batches"]
        self._checksums.append(checksum)
        return indices

    def _rest_divided(self, resumed: Mapping[str, Any], sampler: Any) -> Iterator[Any]:
        """Divide the rest of the epoch among the present ranks, as DistributedSampler divides a whole epoch."""
        if len(sampler.dataset) != resumed["num_samples"]:
            raise _changed(f"the data set had {resumed['num_samples']} samples, and now has {len(sampler.dataset)}")
        num_used_of_division = resumed["num_batches"] * resumed["batch_size"] * resumed["num_replicas"]
        self.num_used = resumed["num_used"] + num_used_of_division
        self.start = dict(self.start or {}) | {"num_replicas": sampler.num_replicas}
        rest = whole_order(sampler)[self.num_used :]
        per_rank, too_many = divmod(len(rest), sampler.num_replicas)
        if too_many and not sampler.drop_last:
            per_rank += 1
            while len(rest) < per_rank * sampler.num_replicas:  # like the sampler: some samples come twice
                rest += rest[: per_rank * sampler.num_replicas - len(rest)]
        of_rank = rest[sampler.rank : per_rank * sampler.num_replicas : sampler.num_replicas]
        batches = BatchSampler(of_rank, self._parts.batch_size, self._parts.drop_last)
        self._num_batches = len(batches)
        return iter(batches)


def _changed(what: str) -> CheckpointError:
    return CheckpointError(
        f"`data` cannot continue its order: {what}",
        hint="resume with the data set, batch size, seed and number of ranks that it was saved with, or omit `data`",
    )


def _checksum(indices: Any, before: int) -> int:
    return zlib.crc32(repr(indices).encode(), before)


def _warn_of_epoch(of_script: int, saved: int) -> None:
    LOG.warning(
        "flatout.checkpoint: the script sets epoch %d, but the checkpoint is in epoch %d: the rest of that epoch comes"
        " first; begin at epoch `step // len(loader)` after resume()",
        of_script,
        saved,
    )
