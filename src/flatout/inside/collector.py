"""Python's garbage collector as the script left it, and what Flatout has turned off or frozen.

In: the state of `gc`. Out: whether the script lets Python collect, and the frozen objects that have to be found again.
Decides nothing; the patch `garbage_collection` does. This module does not import torch.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterable
from typing import Any


class GarbageCollector:
    """The garbage collector of this process."""

    def __init__(self) -> None:
        self.is_off = False  # turned off by Flatout
        self._is_known_to_forks = False  # a forked child, such as a loader's worker, collects: it has no steps
        self._frozen: list[weakref.ref[Any]] = []

    def is_automatic(self) -> bool:
        """Return whether the script lets Python decide when to collect; what Flatout turned off does not count."""
        return self.is_off or (gc.isenabled() and gc.get_threshold()[0] > 0)

    def turn_off(self) -> None:
        gc.disable()
        if not self._is_known_to_forks:
            os.register_at_fork(after_in_child=self.turn_on)
            self._is_known_to_forks = True
        self.is_off = True

    def turn_on(self) -> None:
        """Let Python collect again, if Flatout has switched that off."""
        if self.is_off:
            self.is_off = False
            gc.enable()

    def freeze(self, keep: Iterable[Any]) -> int:
        """Freeze all objects, and return how many. `frozen` still finds those in `keep`."""
        self._frozen += [weakref.ref(kept) for kept in keep]
        before = gc.get_freeze_count()
        gc.freeze()
        return gc.get_freeze_count() - before

    def frozen(self) -> list[Any]:
        """Return the objects to keep that are still alive: `gc.get_objects` does not list frozen ones."""
        return [kept for reference in self._frozen if (kept := reference()) is not None]


COLLECTOR = GarbageCollector()
