"""Store predictions of past tunings with their measured results, as appended JSON lines, for `calibrate` to learn from.

In and out: a path that the caller chooses. Predictions are stored as replayed, before any correction, so that a
correction is never learned twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.input_files import decode_json, open_file, read_bytes
from flatout.records.prediction import Prediction, PredictionRecord


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The readable lines of a history."""

    records: tuple[PredictionRecord, ...] = ()
    num_damaged: int = 0  # lines that could not be read


def prediction_record(
    prediction: Prediction, measured: float, machine: str, date: str, *, sd: float = 0.0
) -> PredictionRecord:
    """Return the history's record of a prediction and its measured speedup; `sd` is the noise of log(measured)."""
    replayed = (prediction.speedup / prediction.correction, None, None)
    predicted, low, high = prediction.model or replayed
    return PredictionRecord(
        family=prediction.family,
        change=prediction.change,
        predicted=predicted,
        measured=measured,
        machine=machine,
        date=date,
        low=low,
        high=high,
        sd=sd,
    )


def read_history(path: Path) -> History:
    """Read the history; without a file at the path, it is empty. Raise InputError if the file is unreadable."""
    try:
        lines = read_bytes(path).splitlines()
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise InputError(f"the history {path} cannot be read: {error.strerror}") from None
    records, num_damaged = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            record = decode_json(line, type=PredictionRecord)
        except msgspec.DecodeError:
            num_damaged += 1
            continue
        if record.predicted > 0 and record.measured > 0 and record.sd >= 0:
            records.append(record)
        else:
            num_damaged += 1
    return History(records=tuple(records), num_damaged=num_damaged)


def append_history(path: Path, records: Iterable[PredictionRecord]) -> None:
    """Append a line per record, all in one write, so that two tunings can append to one file."""
    text = b"".join(msgspec.json.encode(each) + b"\n" for each in records)
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Begin a new line, so that a line truncated by a crash does not spoil the next one.
        prefix = b"\n" if _ends_within_a_line(path) else b""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, prefix + text)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OutputError(f"the history {path} cannot be written: {error.strerror}") from None


def _ends_within_a_line(path: Path) -> bool:
    try:
        with open_file(path) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
