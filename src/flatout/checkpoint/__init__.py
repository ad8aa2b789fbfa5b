"""Checkpoints that cost a step little and are whole or absent: `Checkpointer`.

Runs in the user's training process: the standard library and torch only, and `flatout.errors`. Tensors are safetensors,
the rest is JSON; nothing that is read is executed. `scripted` is for checkpoints that a script writes on its own, and
needs no torch, which is therefore imported with `Checkpointer` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout.checkpoint.problems import CheckpointError, DamagedError, LockedError

if TYPE_CHECKING:
    from flatout.checkpoint.checkpointer import Checkpointer

__all__ = ["CheckpointError", "Checkpointer", "DamagedError", "LockedError"]


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from flatout.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(name)
