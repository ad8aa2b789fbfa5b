"""The order in which a DataLoader gives its samples, from its parts alone: can it be continued, and what is it?

In: a loader or a sampler of torch, in the user's process. Out: why the position in the order cannot be saved and the
way out, or the order of an epoch. A loader is not iterated to decide: a sampler's `__iter__` may count epochs or draw
random numbers.
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


def samplers_of(loader: Any) -> list[Any]:
    """Return the objects that decide the order: the batch sampler and the samplers within it."""
    parts: list[Any] = []
    part = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while part is not None and all(part is not other for other in parts):
        parts.append(part)
        part = getattr(part, "sampler", None)
    return parts


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


def unsaved_position(loader: Any, saver: str) -> str:
    """Return the line about a loader whose position nothing saves; `saver` is the Checkpointer to pass it to."""
    name = f"{_name(loader)} over {_name(loader.dataset)}"
    lost = f"the position of the {name} is not saved: a restart begins its epoch again, unless the script skips batches"
    problem = None if has_state(loader) else position_problem(loader)
    if problem is None:
        return f"{lost}; pass `data=` with this loader to {saver}"
    reason, way_out = problem
    return f"{lost}; {reason}; {way_out}, and pass `data=` to {saver}"


def whole_order(sampler: Any) -> list[int]:
    """Return the samples of this epoch in the sampler's order, of all its ranks if it is a DistributedSampler."""
    if not isinstance(sampler, DistributedSampler):
        return list(sampler)
    own = {name: getattr(sampler, name) for name in ("num_replicas", "rank", "num_samples", "total_size")}
    num_samples = len(sampler.dataset)
    sampler.num_replicas, sampler.rank, sampler.num_samples, sampler.total_size = 1, 0, num_samples, num_samples
    try:
        return list(sampler)
    finally:
        for name, value in own.items():
            setattr(sampler, name, value)


def _name(part: Any) -> str:
    return type(part).__qualname__
