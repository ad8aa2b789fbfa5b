"""Let one queued job try a tuning before the others do: `flatout submit --canary`.

In: a tuned.toml, and the ledger that its canary writes. Out: whether the next job gets the changes. The canary is the
first job that is submitted with `--canary`; it compares its steps with the tuning (`run/tuning_check.py`), and later
submissions read its answer from the ledger. A file next to the tuned.toml says that there is a canary; a new tuning, or
the removal of that file, begins with a new one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from flatout.errors import InputError, UsageError
from flatout.input_files import decode_json, read_bytes, read_lines
from flatout.report.files import write_new

SCHEMA, VERSION = "flatout/canary", 1
# `first`: this job is the canary. `pending`: it has not answered. `not_compared`: it ran on another scale.
CanaryState = Literal["first", "pending", "as_tuned", "not_as_tuned", "regression", "not_compared"]
_WITH_CHANGES: tuple[CanaryState, ...] = ("first", "as_tuned", "not_as_tuned")
_SENTENCES: dict[CanaryState, str] = {
    "first": "this job is the canary: the next ones get the changes if its steps are as fast as tuned",
    "pending": "without the changes: the canary has not compared its steps with the tuning yet",
    "as_tuned": "with the changes: the canary was as fast as tuned",
    "not_as_tuned": "with the changes: the canary was slower than tuned, but not slower than without them",
    "regression": "without the changes: the canary was slower with them than without",
    "not_compared": "without the changes: the canary ran on another scale or device than the tuning",
}


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    version: int
    tuning: str  # digest of the tuned.toml
    ledger: str
    submitted_unix_s: float


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    event: str
    unix_s: float = 0.0
    outcome: Literal["as_tuned", "not_as_tuned", "regression", "not_compared"] | None = None


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission with `--canary` does."""

    state: CanaryState
    config: Path
    ledger: Path

    @property
    def has_changes(self) -> bool:
        return self.state in _WITH_CHANGES

    @property
    def note(self) -> str:
        return _SENTENCES[self.state]


def canary_of(config: Path | None, ledger: Path | None) -> Canary:
    """Return what this submission does. Raise UsageError without a tuning or without a ledger for the answer."""
    if config is None or ledger is None:
        raise UsageError(
            "`--canary` needs a tuning and a ledger for its answer",
            hint="add --config tuned.toml --ledger ledger.jsonl",
        )
    marker = _read_marker(config)
    if marker is None:
        return Canary(state="first", config=config, ledger=ledger)
    answers = [answer for answer in _answers(Path(marker.ledger)) if answer.unix_s >= marker.submitted_unix_s]
    outcomes = [answer.outcome for answer in answers if answer.outcome is not None]
    return Canary(state=outcomes[0] if outcomes else "pending", config=config, ledger=ledger)


def note_canary(canary: Canary, submitted_unix_s: float | None = None) -> None:
    """Write down that the canary is in the queue, if this submission is the canary."""
    if canary.state != "first":
        return
    marker = _Marker(
        schema=SCHEMA,
        version=VERSION,
        tuning=_digest(canary.config),
        ledger=str(canary.ledger.absolute()),
        submitted_unix_s=time.time() if submitted_unix_s is None else submitted_unix_s,
    )
    write_new(_marker_path(canary.config), msgspec.json.encode(marker) + b"\n", force=True)


def _marker_path(config: Path) -> Path:
    return config.with_name(f"{config.name}.canary.json")


def _digest(config: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(config)).hexdigest()
    except OSError as error:
        raise InputError(f"{config} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _read_marker(config: Path) -> _Marker | None:
    """Return the canary of this very tuning, or None."""
    path = _marker_path(config)
    try:
        marker = decode_json(read_bytes(path), type=_Marker)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", hint="remove it to begin with a new canary") from None
    return marker if marker.tuning == _digest(config) else None


def _answers(ledger: Path) -> Iterator[_Answer]:
    """Yield the comparisons in a ledger, or in all ledgers of a folder; damaged lines and missing files have none."""
    # `Path.is_dir` raises for a name that is too long.
    paths = sorted(ledger.glob("*.jsonl")) if os.path.isdir(ledger) else [ledger]
    for path in paths:
        try:
            for line in read_lines(path):
                answer = _answer(line)
                if answer is not None:
                    yield answer
        except OSError:
            continue


def _answer(line: bytes) -> _Answer | None:
    if b"tuning_check" not in line:
        return None
    try:
        answer = decode_json(line, type=_Answer)
    except msgspec.DecodeError:
        return None
    return answer if answer.event == "tuning_check" else None
