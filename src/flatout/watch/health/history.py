"""The readings of a node's GPUs over time. In: a file and the reading of now. Out: earlier readings; the file, renewed.

Health checks are short processes, so rates need a file in which each leaves its reading. It has one line of JSON for
each reading, at least `LEAST_APART_S` apart, and keeps a week.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import partial_name
from flatout.records.gpu_health import HealthReading
from flatout.secrets import write_private

LEAST_APART_S = 300.0
KEPT_S = 7 * 86_400.0


def read_history(path: Path) -> list[HealthReading]:
    """Return the readings, the oldest first; none if there is no file yet. Raise InputError if it is another file."""
    try:
        lines = read_bytes(path).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        readings = [decode_json(line, type=HealthReading) for line in lines if line.strip()]
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is not a history of `flatout watch node`: {error}", hint="pass another file with --history"
        ) from error
    return sorted(readings, key=lambda reading: reading.unix_s)


def renewed(history: list[HealthReading], now: HealthReading) -> list[HealthReading] | None:
    """Return the history with this reading and without those that are too old; None if the last one is recent."""
    is_empty = not now.gpus and not now.ports
    if is_empty or (history and now.unix_s - history[-1].unix_s < LEAST_APART_S):
        return None
    return [*(reading for reading in history if now.unix_s - reading.unix_s <= KEPT_S), now]


def write_history(path: Path, history: list[HealthReading]) -> None:
    """Replace the file. Raise OutputError if it cannot be written."""
    text = b"".join(msgspec.json.encode(reading) + b"\n" for reading in history)
    partial = path.with_name(partial_name(path.name))
    try:
        write_private(partial, text)
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from error
