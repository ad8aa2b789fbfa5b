"""Outcomes of past tunings as JSON lines, appended only: what `calibrate` learns from. The caller says where it lies.

Predictions are kept as they were replayed, before a correction, so that corrections are never learned twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.records.prediction import Outcome, Prediction


class History(msgspec.Struct, frozen=True, kw_only=True):
    outcomes: tuple[Outcome, ...] = ()
    num_damaged: int = 0  # lines that could not be read


def outcome(prediction: Prediction, measured: float, machine: str, date: str, *, sd: float = 0.0) -> Outcome:
    speedup = prediction.speedup / prediction.correction
    likely, low, high = prediction.model if prediction.model is not None else (speedup, None, None)
    return Outcome(
        family=prediction.family,
        change=prediction.change,
        predicted=likely,
        measured=measured,
        machine=machine,
        date=date,
        low=low,
        high=high,
        sd=sd,
    )


def read_history(path: Path) -> History:
    """What is there; a path that does not exist yet is an empty history."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise InputError(f"the history {path} cannot be read: {error.strerror}") from None
    outcomes, num_damaged = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=Outcome)
        except msgspec.DecodeError:
            num_damaged += 1
            continue
        if found.predicted > 0 and found.measured > 0 and found.sd >= 0:
            outcomes.append(found)
        else:
            num_damaged += 1
    return History(outcomes=tuple(outcomes), num_damaged=num_damaged)


def append_history(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Each outcome is a line, written at once, so that two tunings may append to one file."""
    text = b"".join(msgspec.json.encode(each) + b"\n" for each in outcomes)
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A line that was cut short by a crash must not take the next one with it.
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
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
