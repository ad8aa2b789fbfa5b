"""The goodput ledger: JSON lines, only ever added to, each by one write; and its totals.

A line of `seconds` has the devices' time since the one before, in nanoseconds by class. What was written stays true if
the writer is killed at any time: a line that was cut short is passed over, and the next writer begins a new one.

    {"schema": "flatout/ledger", "version": 1, "event": "run", "unix_s": .., "command": "..", "num_devices": 2 | null,
     "gpu": ".." | null}
    {"event": "attempt", "unix_s": .., "attempt": 0}
    {"event": "seconds", "unix_s": .., "attempt": 0, "num_devices": 2, "ns": {"productive": .., ..}, "steps": 120}
    {"event": "hang" | "failure" | "saving" | "end", ..}
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError, OutputError
from flatout.keep.account import CLASSES, NOT_KNOWN

SCHEMA, VERSION = "flatout/ledger", 1


class Writer:
    """Adds lines to a ledger. `clean` is applied to each text in them, to mask what is not to be told."""

    def __init__(self, path: Path, *, clean: Callable[[str], str] = lambda text: text) -> None:
        self._path = path
        self._clean = clean
        self.problem: str | None = None  # a ledger that cannot be written must not end the job
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.lseek(self._file, 0, os.SEEK_END)
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")
        except OSError as error:
            raise OutputError(
                f"{path}: the ledger cannot be written: {(error.strerror or str(error)).lower()}"
            ) from error

    def write(self, event: str, **values: Any) -> None:
        line = {"event": event, "unix_s": round(time.time(), 3), **values}
        if event == "run":
            line = {"schema": SCHEMA, "version": VERSION, **line}
        text = json.dumps(self._cleaned(line), separators=(",", ":")) + "\n"
        try:
            os.write(self._file, text.encode())
        except OSError as error:
            self.problem = f"{self._path}: {(error.strerror or str(error)).lower()}"

    def _cleaned(self, value: Any) -> Any:
        match value:
            case str():
                return self._clean(value)
            case dict():
                return {name: self._cleaned(one) for name, one in value.items()}
            case list() | tuple():
                return [self._cleaned(one) for one in value]
        return value

    def close(self) -> None:
        os.close(self._file)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Of all runs in a ledger, or of those that a filter has left."""

    num_runs: int
    num_attempts: int
    num_hangs: int
    num_failures: int
    num_not_the_jobs: int  # failures and hangs that are not known to be the job's own
    num_unfinished: int  # runs without an end: they run, or their writer was killed
    num_bad_lines: int
    num_devices: int | None
    gpu: str | None  # the name of the last run's
    num_steps: int
    ns: Mapping[str, int]  # by class
    failures: tuple[str, ...]
    saving: Mapping[str, Any] | None = None  # the last choice of an interval, see `saving`

    @property
    def allocated_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def goodput(self) -> float | None:
        """The share of the allocated time in which new steps were made; None: no time is known."""
        return self.ns.get("productive", 0) / self.allocated_ns if self.allocated_ns else None

    @property
    def not_known(self) -> Mapping[str, str]:
        return NOT_KNOWN


class Totalling:
    """Adds up lines as they come."""

    def __init__(self) -> None:
        self._ns = dict.fromkeys(CLASSES, 0)
        self._counts = dict.fromkeys(("run", "attempt", "hang", "failure", "end"), 0)
        self._num_bad = 0
        self._num_devices: int | None = None
        self._gpu: str | None = None
        self._num_steps = 0
        self._failures: list[str] = []
        self._num_not_the_jobs = 0
        self._saving: dict[str, Any] | None = None

    def add(self, raw: bytes) -> dict[str, Any] | None:
        """The line; None where it is none."""
        try:
            line = json.loads(raw)
            event = line["event"]
            if event == "seconds":
                parts = {str(name): int(value) for name, value in line["ns"].items()}
                num_steps, num_devices = int(line.get("steps", 0)), int(line.get("num_devices") or 0)
                if min(num_steps, num_devices, *parts.values()) < 0:
                    raise ValueError
                self._num_devices = num_devices or self._num_devices
                self._num_steps += num_steps
                for name, value in parts.items():
                    self._ns[name] = self._ns.get(name, 0) + value
            elif event == "saving":
                self._saving = line
            elif event in self._counts:
                self._counts[event] += 1
                if event == "run":
                    self._gpu = line.get("gpu")
                self._num_not_the_jobs += event == "hang" or (event == "failure" and line.get("fault") != "user")
                if event in ("failure", "hang") and line.get("says"):
                    self._failures.append(str(line["says"]))
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
            self._num_bad += 1
            return None
        return dict(line)

    def totals(self) -> Totals:
        return Totals(
            num_runs=self._counts["run"],
            num_attempts=self._counts["attempt"],
            num_hangs=self._counts["hang"],
            num_failures=self._counts["failure"],
            num_not_the_jobs=self._num_not_the_jobs,
            num_unfinished=max(self._counts["run"] - self._counts["end"], 0),
            num_bad_lines=self._num_bad,
            num_devices=self._num_devices,
            gpu=self._gpu,
            num_steps=self._num_steps,
            ns=dict(self._ns),
            failures=tuple(self._failures),
            saving=self._saving,
        )


def read(path: Path) -> Totals:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    totalling = Totalling()
    read = [totalling.add(raw) for raw in lines]
    first = next((line for line in read if line is not None), None)
    if first is None or first.get("schema") != SCHEMA:
        raise InputError(f"{path} is no ledger", hint="a ledger is what `flatout run --ledger FILE` writes")
    if first.get("version") != VERSION:
        raise InputError(f"{path} has version {first.get('version')} of the ledger; this Flatout reads {VERSION}")
    return totalling.totals()
