"""Write `rank{R}.steps.jsonl`, the record of one rank, line by line, so that the lines of a killed rank are not lost.

The first line is an object with the key `schema`. It is followed by rows (arrays, in the order of `STEP_COLUMNS`) and
objects with the key `event`. Creating the file claims the rank: a second process with the same rank finds the file.
Lines are buffered for a second, so that writing takes no step time; a failed write is tried again later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.inside.protocol import STEP_COLUMNS, STEP_FILE_DELAY_S, File

SCHEMA, VERSION = "flatout/steps", 1
_encode = json.JSONEncoder(separators=(",", ":")).encode
_HELD_NS = int(STEP_FILE_DELAY_S * 1e9)
_MAX_HELD = 20_000


class StepFile:
    """The step file of one rank."""

    def __init__(self, recording: Path, rank: int, header: dict[str, Any]) -> None:
        """Create the file. Raises FileExistsError if another process has already claimed this rank."""
        path = recording / File.STEPS.of(rank)
        self.rank = rank
        self.num_lost = 0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._held: list[str] = [json.dumps({"schema": SCHEMA, "version": VERSION, **header, "columns": STEP_COLUMNS})]
        self._next_ns = 0

    def rows(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Add rows. Encoding them together takes a third of the time; no text in them contains a bracket."""
        if rows:
            self._held += _encode(rows)[1:-1].replace("],[", "]\n[").split("\n")

    def lines(self, rows: Sequence[str]) -> None:
        """Add rows that are already encoded."""
        self._held += rows

    def event(self, name: str, **fields: object) -> None:
        self._held.append(_encode({"event": name, **fields}))

    def drop_held_rows(self) -> None:
        """Drop the rows that are not written yet."""
        self._held = [line for line in self._held if not line.startswith("[")]

    def flush(self, now_ns: int, *, is_forced: bool = False) -> None:
        """Write the buffered lines if it is time to do so or if `is_forced`."""
        is_time = is_forced or now_ns >= self._next_ns
        if not is_time or not self._held:
            return
        self._next_ns = now_ns + _HELD_NS
        data = ("\n".join(self._held) + "\n").encode()
        try:
            written = os.write(self._file, data)
        except OSError:
            self._drop_oldest()
            return
        if written < len(data):  # the disk is full; the truncated line is written again later
            rest = data[data.rfind(b"\n", 0, written) + 1 :]
            self._held = ["", *rest.decode().splitlines()]
        else:
            self._held = []

    def forget(self) -> None:
        """Close the file without writing, in a forked child, because the file belongs to the parent."""
        os.close(self._file)

    def close(self, now_ns: int) -> None:
        self.flush(now_ns, is_forced=True)
        os.close(self._file)

    def _drop_oldest(self) -> None:
        excess = len(self._held) - _MAX_HELD
        if excess > 0:
            self.num_lost += excess
            del self._held[1 : 1 + excess]
