"""Start the random numbers of a trial from a fixed seed, so that the losses of two trials can be compared.

In: `Variable.SEED`. Out: torch's and numpy's global generators, seeded before the script's first line after the import.
A script that seeds them itself is not affected, as its own call comes later. Python's own `random` is left alone:
scripts choose ports and the names of folders by it, and those of two trials must differ.
"""

from __future__ import annotations

import os
from typing import Any

import torch

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


def sets_own_seed() -> bool | None:
    """Whether the script has seeded torch itself since; None without a seed of the trial."""
    seed = _seed()
    return None if seed is None else torch.initial_seed() != seed


def _seed() -> int | None:
    text = os.environ.get(Variable.SEED, "")
    if not text.isdecimal():
        return None
    rank = os.environ.get(_RANK, "0")
    return (int(text) + (int(rank) if rank.isdecimal() else 0)) % _MOST
