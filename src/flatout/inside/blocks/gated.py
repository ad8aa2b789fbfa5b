"""Switch patches that check at each call whether they are on: autocast, non-blocking copies, `no_sync` of DDP.

The patch is installed before the script makes its model, as in a trial, and starts switched off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout.inside.blocks.switcher import Switcher
from flatout.inside.patches import autocast as autocast_patch
from flatout.inside.patches import copies
from flatout.inside.patches import ddp_no_sync as no_sync_patch
from flatout.inside.patches.report import Report, Reports

Patch = Callable[..., None]


class GatedPatch(Switcher):
    """A patch whose report says whether it is on."""

    def __init__(self, name: str, patch: Patch, parameters: dict[str, Any]) -> None:
        super().__init__()
        self._patch = patch
        self._report = Report(name, parameters, Reports())  # without a folder, which writes nothing

    def prepare(self) -> None:
        self._report.is_on = False
        self._patch(self._report, **self._report.parameters)

    def apply(self) -> None:
        self._report.is_on = True

    def undo(self) -> None:
        self._report.is_on = False

    def block_ended(self) -> None:
        if not self._report.is_applied:
            self.problem = self._report.reason or "it took no effect"


def autocast(**parameters: Any) -> Switcher:
    return GatedPatch("autocast", autocast_patch.autocast, parameters)


def non_blocking_copies() -> Switcher:
    return GatedPatch("non_blocking_copies", copies.non_blocking_copies, {})


def ddp_no_sync(**parameters: Any) -> Switcher:
    return GatedPatch("ddp_no_sync", no_sync_patch.ddp_no_sync, parameters)
