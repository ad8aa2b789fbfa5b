"""The undo log: each controller action, written to disk before it is done, its outcome, and observed failures.

Append-only JSON lines, each synced. It is locked while it is open, so that one controller uses it at a time. A line
that a crash truncated is skipped, because its action was not begun.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from flatout import __version__
from flatout.errors import InputError, OutputError
from flatout.input_files import decode_json, read_bytes
from flatout.schedule.live.actions import Action
from flatout.schedule.live.view import NodeFailure
from flatout.secrets import masked_command, masked_text

SCHEMA = "flatout/schedule-log"
ActionOutcome = Literal["done", "failed", "unknown"]


class LoggedAction(msgspec.Struct, kw_only=True):
    """An action with its number in the log. `unknown`: begun, but the controller ended before it knew the outcome."""

    number: int
    unix_s: float
    action: Action
    outcome: ActionOutcome = "unknown"
    is_undone: bool = False


class LogFile:
    """The open undo log; use it in a `with` block.

    Raises OutputError if another controller has the file open, and InputError if it is not an undo log.
    """

    def __init__(self, path: Path, *, cluster: str, command: Sequence[str]) -> None:
        self.path = path
        self._cluster, self._command = cluster, command
        self._file: int | None = None
        self.entries: list[LoggedAction] = []
        self.failures: list[NodeFailure] = []

    def __enter__(self) -> LogFile:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise OutputError(
                f"{self.path} is in use by another controller",
                hint="end that controller, or pass another --log to this one",
            ) from None
        except OSError as error:
            self._close()
            raise OutputError(f"{self.path} cannot be opened: {error.strerror}") from None
        try:
            self._begin()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def begin(self, action: Action) -> LoggedAction:
        """Write an action to disk. The action may be done only after this returns."""
        entry = LoggedAction(number=len(self.entries) + 1, unix_s=time.time(), action=action)
        self._append({"event": "begin", "number": entry.number, "unix_s": entry.unix_s, "action": action})
        self.entries.append(entry)
        return entry

    def end(self, entry: LoggedAction, outcome: ActionOutcome, said: str = "") -> None:
        self._append(
            {
                "event": "end",
                "number": entry.number,
                "unix_s": time.time(),
                "outcome": outcome,
                "said": masked_text(said),
            }
        )
        entry.outcome = outcome

    def undone(self, entry: LoggedAction) -> None:
        self._append({"event": "undone", "number": entry.number, "unix_s": time.time()})
        entry.is_undone = True

    def failed(self, failure: NodeFailure) -> None:
        self._append({"event": "failure", "failure": failure})
        self.failures.append(failure)

    def _begin(self) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size:
            self.entries, self.failures = read_log(self.path, cluster=self._cluster)
            if os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")
        else:
            self._append(
                {
                    "schema": SCHEMA,
                    "version": 1,
                    "tool_version": __version__,
                    "command": list(masked_command(self._command)),
                    "cluster": self._cluster,
                }
            )

    def _append(self, record: dict[str, Any]) -> None:
        assert self._file is not None
        line = msgspec.json.encode(record) + b"\n"
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(0, "only part of it was written")
            os.fsync(self._file)
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written, so no further action is taken: {error.strerror}",
                hint="free disk space there, and restart",
            ) from None

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_log(path: Path, *, cluster: str) -> tuple[list[LoggedAction], list[NodeFailure]]:
    """Read a log. Raises InputError if it is missing, is not an undo log, or belongs to another cluster."""
    try:
        lines = read_bytes(path).split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    header = _decoded(lines[0])
    if header is None or header.get("schema") != SCHEMA or header.get("version") != 1:
        raise InputError(
            f"{path} is not a log of `flatout schedule slurm`", hint="its first line does not have that schema"
        )
    if header.get("cluster") != cluster:
        raise InputError(f"{path} belongs to cluster `{header.get('cluster')}`, but this cluster is `{cluster}`")
    return _replayed(path, lines[1:])


def _replayed(path: Path, lines: Iterable[bytes]) -> tuple[list[LoggedAction], list[NodeFailure]]:
    entries: list[LoggedAction] = []
    failures: list[NodeFailure] = []
    for number, line in enumerate(lines, 2):
        record = _decoded(line)
        if record is None:
            continue
        try:
            match record["event"]:
                case "begin":
                    action = msgspec.convert(record["action"], Action)
                    if record["number"] != len(entries) + 1:
                        raise ValueError(f"its number must be {len(entries) + 1}, but is {record['number']}")
                    entries.append(LoggedAction(number=record["number"], unix_s=record["unix_s"], action=action))
                case "end":
                    entries[record["number"] - 1].outcome = record["outcome"]
                case "undone":
                    entries[record["number"] - 1].is_undone = True
                case "failure":
                    failures.append(msgspec.convert(record["failure"], NodeFailure))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"{path}:{number}: this line of the log cannot be read: {error}") from None
    return entries, failures


def _decoded(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None for a line that a crash truncated."""
    try:
        record = decode_json(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if isinstance(record, dict) else None
