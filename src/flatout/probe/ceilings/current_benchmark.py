"""The current measurement of each rank, in a separate file, so that it is known even if the kernel kills the rank.

In: `CurrentBenchmark.at` in the worker. Out: `read_current_benchmark` in the command that started it. A write takes
a few microseconds, before the clock of a measurement starts, and wakes no other process.
"""

from __future__ import annotations

import os
from pathlib import Path

_NOTHING = "-"


class CurrentBenchmark:
    """Record what a rank measures. Without a folder, as when torchrun started the ranks, nothing is recorded."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._file = -1
        if folder is not None:
            self._file = os.open(folder / f"at-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)

    def at(self, key: str | None) -> None:
        """Record the current measurement by its key (see `raw.key_of`); None between measurements."""
        if self._file >= 0:
            text = (key or _NOTHING).encode()
            os.pwrite(self._file, text + b"\n", 0)  # a longer previous key's rest stays below


def read_current_benchmark(folder: Path, rank: int) -> str | None:
    """Return the key of the rank's current measurement; None between measurements, or before the first."""
    try:
        key = (folder / f"at-{rank}").read_text("utf-8", "replace").partition("\n")[0]
    except OSError:
        return None
    return None if key in ("", _NOTHING) else key
