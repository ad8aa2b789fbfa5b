"""Save checkpoints that barely delay training and are either complete or absent: `Checkpointer`.

This package runs in the user's training process and needs only the standard library, torch and `flatout.errors`.
Tensors are saved as safetensors and everything else as JSON; nothing that is read is executed. `scripted` handles
checkpoints that a script writes itself and does not need torch, so torch is imported only with `Checkpointer`.
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
