"""Switch workers, prefetching and pinned memory of DataLoaders, by an iterator that takes over from the script's.

The script keeps the iterator that it has. At its first request after a switch, a new iterator with other settings gets
the rest of the samplers' indices; the batches that workers have already begun are still taken, so the script sees the
same samples in the same order. Both the batches that were ready before and those that the new workers prepare meanwhile
cost the next steps nothing, so as many steps are carry-over. New iterators get the settings of the current arm.

An iterable dataset has its position in the iterator itself, so its loaders keep their settings.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from functools import wraps
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as loaders

from flatout.inside.blocks.switcher import Switcher
from flatout.inside.log import LOG
from flatout.inside.patches.dataloader import holds_device_tensors

_STATE = "_flatout_blocks"
DEFAULT_PREFETCH = 2
_Values = dict[str, Any]


class Loaders:
    """The settings that all loaders of this process should have now, on top of the script's own."""

    def __init__(self) -> None:
        self.wanted: _Values = {}
        self.problem: str | None = None
        self.num_switched = 0
        self._is_installed = False

    def install(self) -> None:
        if not self._is_installed:
            self._is_installed = True
            _hook(self)

    def settings(self, loader: Any) -> _Values:
        """Return the settings that a loader should have now."""
        return _possible(loader, self.wanted)


def _own(loader: Any) -> _Values:
    """Return the script's settings of a loader."""
    return _possible(loader, {})


def _possible(loader: Any, wanted: _Values) -> _Values:
    """Return the wanted settings as this loader can have them, together with the script's own."""
    values = {name: getattr(loader, name) for name in ("num_workers", "prefetch_factor", "pin_memory")} | wanted
    values["pin_memory"] = bool(values["pin_memory"] and torch.cuda.is_available())
    if not loader.num_workers and values["num_workers"] and holds_device_tensors(loader.dataset):
        values["num_workers"] = 0
    if not values["num_workers"]:
        values["prefetch_factor"] = None
    elif values["prefetch_factor"] is None:
        values["prefetch_factor"] = DEFAULT_PREFETCH
    return values


LOADERS = Loaders()


class LoaderSwitcher(Switcher):
    def __init__(self, parameters: _Values) -> None:
        super().__init__()
        self._parameters = parameters
        self._switched_before = 0

    def prepare(self) -> None:
        LOADERS.install()

    def apply(self) -> None:
        LOADERS.wanted = self._parameters
        self._switched_before = LOADERS.num_switched

    def undo(self) -> None:
        LOADERS.wanted = {}

    def block_ended(self) -> None:
        if LOADERS.num_switched == self._switched_before:
            self.problem = LOADERS.problem or "no loader was switched"


class _Takeover:
    """The iterators from which the script's iterator takes its batches: first those that only finish their work."""

    def __init__(self, loader: Any, iterator: Any, values: _Values) -> None:
        # A copy: the script may drop its loader and keep the iterator, and a loader may hold its iterator.
        self.loader = copy.copy(loader)
        self.loader.__dict__["_iterator"] = None
        self.iterators: deque[Any] = deque([iterator])
        self.values = values

    def next_batch(self, original: Any) -> Any:
        while len(self.iterators) > 1:
            try:
                return original(self.iterators[0])
            except StopIteration:
                self.iterators.popleft()
        return original(self.iterators[0])


class _Rest:
    """A sampler that yields the indices that another iterator has not taken yet."""

    def __init__(self, rest: Iterator[Any]) -> None:
        self._rest = rest

    def __iter__(self) -> Iterator[Any]:
        return self._rest


def _hook(active: Loaders) -> None:
    base, several = loaders._BaseDataLoaderIter, loaders._MultiProcessingDataLoaderIter
    original_iter, original_next, original_reset = DataLoader._get_iterator, base.__next__, several._reset

    @wraps(original_iter)
    def get_iterator(self: Any) -> Any:
        if isinstance(self.dataset, IterableDataset):
            active.problem = "an iterable dataset has its position in its iterator"
            return original_iter(self)
        values = active.settings(self)
        made = None
        if values != _own(self):
            made = _guarded(active, original_iter, _with(self, values))
        if made is None:
            made, values = original_iter(self), _own(self)
        else:
            active.num_switched += 1
        made.__dict__[_STATE] = _Takeover(self, made, values)
        return made

    @wraps(original_next)
    def next_batch(self: Any) -> Any:
        takeover: _Takeover | None = self.__dict__.get(_STATE)
        if takeover is None:
            return original_next(self)
        values = active.settings(takeover.loader)
        if values != takeover.values:
            _take_over(active, original_iter, takeover, values)
        batch = takeover.next_batch(original_next)
        if takeover.iterators[0] is not self:
            self._num_yielded += 1
        return batch

    @wraps(original_reset)
    def reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        takeover: _Takeover | None = self.__dict__.get(_STATE)
        if takeover is None or first_iter:
            return original_reset(self, loader, first_iter)
        # Workers that are kept begin their next epoch; those of this iterator, only if they are wanted now.
        takeover.iterators, takeover.values = deque([self]), _own(loader)
        values = active.settings(loader)
        if values != takeover.values:
            successor = _guarded(active, original_iter, _with(takeover.loader, values, _begun(self._index_sampler)))
            if successor is not None:
                takeover.iterators, takeover.values = deque([successor]), values
                active.num_switched += 1
                self._num_yielded = 0
                return None
        return original_reset(self, loader, first_iter)

    DataLoader._get_iterator, base.__next__, several._reset = get_iterator, next_batch, reset


def _take_over(active: Loaders, make: Any, takeover: _Takeover, values: _Values) -> None:
    """Let a new iterator with these settings load what the current one has not begun."""
    takeover.values = values  # tried once, even if it fails
    current = takeover.iterators[-1]
    rest = current._sampler_iter
    current._sampler_iter = iter(())
    successor = _guarded(active, make, _with(takeover.loader, values, rest))
    if successor is None:
        current._sampler_iter = rest
        return
    takeover.iterators.append(successor)
    active.num_switched += 1


def _begun(sampler: Any) -> Iterator[Any]:
    """Return the indices of a sampler that has drawn its random numbers, which it does for the first ones."""
    indices = iter(sampler)
    first = list(islice(indices, 1))
    return chain(first, indices)


def _guarded(active: Loaders, make: Any, loader: Any) -> Any:
    """Return a new iterator, with the random state as it was; None if it cannot be made."""
    states = torch.get_rng_state(), None if loader.generator is None else loader.generator.get_state()
    is_new_epoch = not isinstance(loader._index_sampler, _Rest)
    try:
        made = make(loader)
    except Exception as error:  # noqa: BLE001 - the script's own settings are used
        LOG.error("a loader for blocks")
        active.problem = f"a loader could not be switched: {type(error).__name__}: {error}"
        made = None
    if made is None or not is_new_epoch:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            loader.generator.set_state(states[1])
    return made


def _with(loader: Any, values: _Values, rest: Iterator[Any] | None = None) -> Any:
    """Return a copy of the loader with other settings, which yields the rest of the indices if one is given."""
    other = copy.copy(loader)
    changed = {**values, "persistent_workers": False, "_iterator": None}
    if not values["num_workers"]:
        changed |= {"timeout": 0}
    if rest is not None:
        changed |= {"batch_sampler" if loader._auto_collation else "sampler": _Rest(rest)}
    other.__dict__.update(changed)
    # torch keeps it behind a property that refuses to change without workers.
    if "_DataLoader__multiprocessing_context" in other.__dict__ and not values["num_workers"]:
        other.__dict__["_DataLoader__multiprocessing_context"] = None
    return other


def dataloader(
    *, num_workers: int | None = None, prefetch_factor: int | None = None, pin_memory: bool | None = None
) -> Switcher:
    asked = {"num_workers": num_workers, "prefetch_factor": prefetch_factor, "pin_memory": pin_memory}
    return LoaderSwitcher({name: value for name, value in asked.items() if value is not None})
