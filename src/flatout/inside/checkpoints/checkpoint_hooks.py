"""When the script writes a checkpoint: torch.save, torch.distributed.checkpoint's save and async_save, and ours.

In: their calls. Out: to the recorder, when one begins and ends on the calling thread; it marks them in a trace as
`flatout:checkpoint` and adds up their time a step. What is saved, how and what is raised stay as they are.

torch.distributed.checkpoint is not imported for this: it is hooked once the script has done so. A script that holds
`save` by a name of its own is still seen, as `save` calls a function that is hooked too; not so for `async_save`.
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
    """`begins` gives what `ends` is then called with; None: nothing is to be noted of this call."""

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
        """Hook torch.distributed.checkpoint, and flatout.checkpoint, if they have been imported since."""
        ours = getattr(sys.modules.get(_OURS), "Checkpointer", None)
        if ours is not None and not self._has_ours:
            self._has_ours = True
            self._wrap(ours, "save")
        if self._is_complete:
            return
        modules = [sys.modules.get(name) for name in _DISTRIBUTED]
        if not all(hasattr(module, "save") for module in modules):  # not there, or still being imported
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
        """The same function under two names stays the same function."""
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
