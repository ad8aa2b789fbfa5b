"""Say at the start of a job which of its loaders will not continue its order after a restart.

In: the note that rank 0 writes before its first batch (`inside/liveness/unsaved_order.py`). Out: its line, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.keep.heartbeats import HeartbeatSample

_MAX_BYTES = 1 << 16


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    says: str


class OrderNotice:
    """The notice of one run, of its first attempt. `find_folder` returns where its ranks write, once there is one."""

    def __init__(self, find_folder: Callable[[], Path | None], say: Callable[[str], object]) -> None:
        self._find_folder = find_folder
        self._say = say
        self._is_over = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Look for the note until a rank has made a step; there will be none afterwards."""
        folder = None if self._is_over else self._find_folder()
        if folder is None:
            return
        self._is_over = any(rank.num_steps for rank in ranks)
        for path in folder.glob(File.UNSAVED_ORDER.glob):
            with suppress(OSError, msgspec.DecodeError):
                self._say(decode_json(read_bytes(path, max_bytes=_MAX_BYTES), type=_Note).says)
            self._is_over = True
