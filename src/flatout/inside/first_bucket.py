"""Give the reducer of a DistributedDataParallel a first bucket of another size.

The constructor of DistributedDataParallel has no argument for it: torch takes 1 MiB, or the size of the other buckets
where one is set (seen in 2.6 and 2.13). Its reducer has one, which is replaced while it is made. The first bucket is
that of the gradients that are ready first, once DDP has ordered its buckets in the first step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_MIB = 1 << 20
_NAME = "first_bucket_bytes_cap"


@dataclass
class FirstBucket:
    is_other: bool = False  # a reducer was made whose first bucket would have had another size


@contextmanager
def first_bucket(size_mib: int | None) -> Iterator[FirstBucket]:
    """Give the reducers that are made meanwhile a first bucket of this size; None: torch's own."""
    effect = FirstBucket()
    if size_mib is None:
        yield effect
        return
    original: Any = torch.distributed.Reducer
    place = place_of_size(original)
    if place is None:
        raise ValueError("this torch does not take the size of the first bucket")

    def make(*args: Any, **kwargs: Any) -> Any:
        size = size_mib * _MIB
        if len(args) > place:
            own, args = args[place], (*args[:place], size, *args[place + 1 :])
        else:
            own, kwargs[_NAME] = kwargs.get(_NAME), size
        effect.is_other |= own != size
        return original(*args, **kwargs)

    torch.distributed.Reducer = make
    try:
        yield effect
    finally:
        torch.distributed.Reducer = original


def place_of_size(reducer: Any) -> int | None:
    """Return the place of the size among a reducer's arguments, by the signature in its docstring; None if it has none.

    The class is made in C++, so that `inspect` knows no signature.
    """
    names = re.findall(r"(\w+): ", reducer.__init__.__doc__ or "")
    return names.index(_NAME) - 1 if _NAME in names else None  # without `self`


def why_not(ddp: Any) -> str | None:
    """Return why the size of the first bucket has no effect on this DistributedDataParallel; None if it has."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return "a DistributedDataParallel that looks for unused parameters never orders its buckets"
    if getattr(ddp, "bucket_bytes_cap_list", None):  # from torch 2.13
        return "the script sets the size of each bucket"
    return None
