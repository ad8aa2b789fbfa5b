"""Detect when the script writes a checkpoint: by torch.save, torch.distributed.checkpoint or Flatout itself.

In: calls of these functions. Out: calls to the recorder and the heartbeat when a checkpoint begins and ends on the
calling thread. They mark it in a trace as `flatout:checkpoint` and add up its time. The saved data, the way they are
saved, and raised errors stay the same.

torch.distributed.checkpoint is not imported for this; it is hooked once the script has imported it. If a script holds
`save` under another name, its calls are still seen, because `save` calls another hooked function. This does not hold
for `async_save`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.serialization

_DISTRIBUTED = ("torch.distributed.checkpoint.state_dict_saver", "torch.distributed.checkpoint")
_OURS = "flatout.checkpoint.checkpointer"
_FUNCTIONS = ("save", "async_save", "_save_state_dict")


class CheckpointHooks:
    """Hooks that call `begins`, and then `ends` with its return value; None means that the call is not recorded."""

    def __init__(self, begins: Callable[[], Any], ends: Callable[[Any], object]) -> None:
        self._begins = begins
        self._ends = ends
        self._originals: list[tuple[Any, str, Any]] = []
        self._wrapped: dict[Any, Any] = {}
        self._is_complete = self._has_ours = False

    def install(self) -> None:
        self._wrap(torch.serialization, "save")
        self._wrap(torch, "save")

    def look(self) -> None:
        """Hook torch.distributed.checkpoint and flatout.checkpoint if they have been imported since the last call."""
        ours = getattr(sys.modules.get(_OURS), "Checkpointer", None)
        if ours is not None and not self._has_ours:
            self._has_ours = True
            self._wrap(ours, "save")
        if self._is_complete:
            return
        modules = [sys.modules.get(name) for name in _DISTRIBUTED]
        if not all(hasattr(module, "save") for module in modules):  # not imported, or not completely imported
            return
        self._is_complete = True
        for module in modules:
            for name in _FUNCTIONS:
                if hasattr(module, name):
                    self._wrap(module, name)

    def remove(self) -> None:
        for module, name, original in self._originals:
            setattr(module, name, original)
        self._originals.clear()

    def _wrap(self, module: Any, name: str) -> None:
        """Replace a function; if it has two names, the same wrapper replaces it under both."""
        original = getattr(module, name)
        self._originals.append((module, name, original))
        if original not in self._wrapped:
            self._wrapped[original] = self._reporting(original)
        setattr(module, name, self._wrapped[original])

    def _reporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begins, ends = self._begins, self._ends

        @wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            begun = begins()
            if begun is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                ends(begun)

        return save
