"""Decide which of torch's DataLoaders can continue their order, from their parts alone.

In: a loader. Out: why its position cannot be saved and the way out, before the first batch; None if it can. Nothing is
iterated: a sampler's `__iter__` may count epochs or draw random numbers.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from flatout.checkpoint.problems import CheckpointError

# Their order is a function of random states, of an epoch number and of their arguments.
_REPEATABLE = (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
_REPEATABLE_ORDERS = {kind.__iter__ for kind in _REPEATABLE}
_STATEFUL = "torchdata's StatefulDataLoader"


def has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def is_plain_loader(data: Any) -> bool:
    """Whether this is a DataLoader that does not save its position itself."""
    return isinstance(data, DataLoader) and not has_state(data)


def samplers_of(loader: Any) -> list[Any]:
    """Return the objects that decide the order: the batch sampler and the samplers within it."""
    parts: list[Any] = []
    part = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while part is not None and all(part is not other for other in parts):
        parts.append(part)
        part = getattr(part, "sampler", None)
    return parts


def check_position(loader: Any) -> None:
    """Raise CheckpointError if the position of this loader cannot be saved."""
    problem = position_problem(loader)
    if problem is not None:
        reason, way_out = problem
        hint = f"{way_out}, or omit `data`"
        raise CheckpointError(f"`data` cannot continue its order after a kill: {reason}", hint=hint)


def position_problem(loader: Any) -> tuple[str, str] | None:
    """Return why the position of this loader cannot be saved, and the way out; None if it can be saved."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        reason = f"{_name(dataset)} is an iterable data set, whose position only its own state can hold"
        return reason, f"use {_STATEFUL}, or give the data set state_dict() and load_state_dict()"
    if type(loader).__iter__ is not DataLoader.__iter__:
        reason = f"{_name(loader)} has its own __iter__"
        return reason, "give it state_dict() and load_state_dict()"
    if not getattr(loader, "in_order", True):
        return "its batches come in any order (in_order=False)", "remove in_order=False"
    for sampler in samplers_of(loader):
        is_repeatable = getattr(type(sampler), "__iter__", None) in _REPEATABLE_ORDERS
        if not is_repeatable and not has_state(sampler) and not isinstance(sampler, (list, tuple, range)):
            reason = f"the sampler {_name(sampler)} is neither one of torch's nor has it state_dict()"
            return reason, "give it state_dict() and load_state_dict(), or use a sampler of torch"
    return None


def _name(part: Any) -> str:
    return type(part).__qualname__
