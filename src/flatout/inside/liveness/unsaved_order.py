"""Note before the first batch of the training which loader will not continue its order after a restart.

In: loaders as they make their iterators. Out: a file with one line for `flatout run`, written by rank 0 for the first
loader of the training. Nothing is noted of a loader whose position may be saved: it, its data set or its sampler has a
state, or the process has a Checkpointer, which speaks of it itself, or a trainer that skips the batches that were used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from flatout.inside.identity import find_identity
from flatout.inside.protocol import File, partial_name
from flatout.sample_order import has_state, samplers_of, unsaved_position

_SAVERS = ("flatout.checkpoint.checkpointer", "transformers.trainer")


class UnsavedOrder:
    """The note of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_looked = False

    def epoch_begins(self, loader: Any) -> None:
        """Look at the first loader that makes an iterator while gradients are on."""
        if self._has_looked or not torch.is_grad_enabled():
            return
        self._has_looked = True
        rank = find_identity().rank
        if rank == 0 and not _may_be_saved(loader):
            self._write(rank, unsaved_position(loader, "flatout.checkpoint.Checkpointer"))

    def _write(self, rank: int, line: str) -> None:
        name = File.UNSAVED_ORDER.of(rank)
        partial = self._folder / partial_name(name)
        partial.write_text(json.dumps({"says": line}), encoding="utf-8")
        partial.replace(self._folder / name)


def _may_be_saved(loader: Any) -> bool:
    if any(name in sys.modules for name in _SAVERS):
        return True
    return any(has_state(part) for part in (loader, loader.dataset, *samplers_of(loader)))
