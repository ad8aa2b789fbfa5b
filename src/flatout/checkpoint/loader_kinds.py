"""Decide which loaders a Checkpointer can continue, and refuse the others before the first batch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from flatout.checkpoint.problems import CheckpointError
from flatout.sample_order import has_state, position_problem


def is_plain_loader(data: Any) -> bool:
    """Whether this is a DataLoader that does not save its position itself."""
    return isinstance(data, DataLoader) and not has_state(data)


def check_position(loader: Any) -> None:
    """Raise CheckpointError if the position of this loader cannot be saved."""
    problem = position_problem(loader)
    if problem is not None:
        reason, way_out = problem
        hint = f"{way_out}, or omit `data`"
        raise CheckpointError(f"`data` cannot continue its order after a kill: {reason}", hint=hint)
