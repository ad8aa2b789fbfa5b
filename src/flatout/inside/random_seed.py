"""Start the random numbers of a trial from a fixed seed, so that the losses of two trials can be compared.

In: `Variable.SEED`. Out: torch's and numpy's global generators, seeded before the script's first line after the import.
A script that seeds them itself is not affected, as its own call comes later. Python's own `random` is left alone:
scripts choose ports and the names of folders by it, and those of two trials must differ.

`Variable.OTHER_SAMPLES` starts them from another seed when the first loader starts, whatever the script's own seed is.
So the model begins with the same weights, but the loader shuffles and augments otherwise, as it does with another
number of workers: such a trial shows how far losses differ by the samples drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
import torch.utils.data

from flatout.inside.after_import import after_import
from flatout.inside.protocol import Variable

_RANK = "RANK"  # ranks that draw the same numbers would, for example, drop out the same activations
_MOST = 2**32 - 1  # numpy's largest seed


def seed_random_numbers() -> None:
    """Seed the generators, if the trial asks for it."""
    seed = _seed()
    if seed is None:
        return
    torch.manual_seed(seed)

    def seed_numpy(numpy_random: Any) -> None:
        numpy_random.seed(seed)

    after_import("numpy.random", seed_numpy)


def draw_other_samples() -> Callable[[], None] | None:
    """Start the generators from another seed when the first loader starts, if the trial asks for it."""
    text = os.environ.get(Variable.OTHER_SAMPLES, "")
    if not text.isdecimal():
        return None
    loader = torch.utils.data.DataLoader
    original = loader.__iter__
    has_started = False

    @wraps(original)
    def start(self: Any) -> Iterator[Any]:
        nonlocal has_started
        if not has_started:
            has_started = True
            _reseed(_of_rank(int(text)))
        iterator: Iterator[Any] = original(self)
        return iterator

    loader.__iter__ = start
    return lambda: setattr(loader, "__iter__", original)


def _reseed(seed: int) -> None:
    torch.manual_seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed)


def sets_own_seed() -> bool | None:
    """Whether the script has seeded torch itself since; None without a seed of the trial, or if that was replaced."""
    seed = None if os.environ.get(Variable.OTHER_SAMPLES) else _seed()
    return None if seed is None else torch.initial_seed() != seed


def _seed() -> int | None:
    text = os.environ.get(Variable.SEED, "")
    return _of_rank(int(text)) if text.isdecimal() else None


def _of_rank(seed: int) -> int:
    rank = os.environ.get(_RANK, "0")
    return (seed + (int(rank) if rank.isdecimal() else 0)) % _MOST
