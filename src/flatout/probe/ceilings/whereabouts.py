"""The current measurement of each rank, in a separate file, so that it is known even if the kernel kills the rank.

In: `Whereabouts.at` in the worker. Out: `read_whereabouts` in the command that started it. A write costs some
microseconds, before the clock of a measurement runs, and wakes nobody.
"""

from __future__ import annotations

import os
from pathlib import Path

_NOTHING = "-"


class Whereabouts:
    """Without a folder, as where torchrun has started the ranks, nobody would read it."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._file = -1
        if folder is not None:
            self._file = os.open(folder / f"at-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)

    def at(self, key: str | None) -> None:
        """`key`: as `raw.key_of` gives it; None: between measurements."""
        if self._file >= 0:
            text = (key or _NOTHING).encode()
            os.pwrite(self._file, text + b"\n", 0)  # what is longer of the one before is behind the end of the line


def read_whereabouts(folder: Path, rank: int) -> str | None:
    """What the rank was at; None: at none, or not that far."""
    try:
        key = (folder / f"at-{rank}").read_text("utf-8", "replace").partition("\n")[0]
    except OSError:
        return None
    return None if key in ("", _NOTHING) else key
