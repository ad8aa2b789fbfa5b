"""Say at the start of a training which loader will not continue its order: one that no checkpoint has the position of.

In: the objects that a Checkpointer saves, and the first loader that the training iterates after. Out: one line, before
its first batch, with the way out. Loaders without gradients (an evaluation) are left alone, and so is a loader that is
saved itself, or by its data set or sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch.utils.data import DataLoader

from flatout.sample_order import samplers_of, unsaved_position


def watch_for_unsaved_loader(saved: Iterable[Any], warn: Callable[[str], None]) -> Callable[[], None]:
    """Call `warn` with a line if the first loader of the training is not saved; return what ends the watch."""
    saved_ids = {id(part) for part in saved}
    original = DataLoader._get_iterator
    is_watching = True

    @wraps(original)
    def get_iterator(self: Any) -> Any:
        nonlocal is_watching
        if is_watching and torch.is_grad_enabled():
            is_watching = False
            if saved_ids.isdisjoint(id(part) for part in (self, self.dataset, *samplers_of(self))):
                warn(unsaved_position(self, "Checkpointer"))
        return original(self)

    DataLoader._get_iterator = get_iterator

    def end() -> None:
        nonlocal is_watching
        is_watching = False
        if DataLoader._get_iterator is get_iterator:  # otherwise another hook calls it
            DataLoader._get_iterator = original

    return end
