"""Time the first indices that a loader's sampler gives in each epoch: some samplers compute the whole order then.

In: the calls by which loaders of torch ask their samplers for indices. Out: for a loader, the usual seconds until its
sampler's first indices of an epoch. The later calls of an epoch are not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from statistics import median
from typing import Any

import torch.utils.data.dataloader as loaders

from flatout.inside.log import guarded

_MARK = "_flatout_asked"  # on a loader's iterator: the iterator of its sampler that has been asked before
_MOST = 64  # samplers, and epochs of each


class SamplerTimes:
    """The seconds of each sampler's first indices, by the sampler's identity."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[float]] = {}

    @guarded
    def note(self, sampler: object, seconds: float) -> None:
        """Take the time of the first indices of an epoch."""
        if len(self._firsts) >= _MOST and id(sampler) not in self._firsts:
            return
        of_sampler = self._firsts.setdefault(id(sampler), [])
        if len(of_sampler) < _MOST:
            of_sampler.append(seconds)

    def facts_of(self, iterator: Any) -> dict[str, Any]:
        """Return the fact of a loader for `facts-rank<R>.json`; {} if its sampler was not asked."""
        firsts = self._firsts.get(id(getattr(iterator, "_index_sampler", None)))
        return {"loader_sampler_s": median(firsts)} if firsts else {}


SAMPLER_TIMES = SamplerTimes()


def hook_samplers() -> Callable[[], None]:
    """Time the first indices of each epoch; return a function that removes the hook."""
    owner = loaders._BaseDataLoaderIter
    original = owner._next_index

    @wraps(original)
    def next_index(self: Any) -> Any:
        asked = self._sampler_iter
        if self.__dict__.get(_MARK) is asked:
            return original(self)
        self.__dict__[_MARK] = asked
        began = time.perf_counter()
        indices = original(self)
        SAMPLER_TIMES.note(self._index_sampler, time.perf_counter() - began)
        return indices

    owner._next_index = next_index
    return lambda: setattr(owner, "_next_index", original)
