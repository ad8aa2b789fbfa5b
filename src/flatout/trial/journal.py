"""Keep the journal of a tuning run: one line per trial, so that an interrupted tuning run can be resumed.

A line is written when its trial ends, so an interrupted trial is run again. The first line identifies the tuning run: a
run with a different command, options or version is not resumed. The journal of a different run is replaced if it has no
conclusive trial, e.g. after a typo in the command.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError, OutputError
from flatout.input_files import BadLine, decode_json, open_file, read_bytes
from flatout.records.trial import TrialResult
from flatout.secrets import masked_command, masked_text, open_private


class Heading(msgspec.Struct, frozen=True, kw_only=True, tag="heading"):
    tool_version: str
    command: tuple[str, ...]
    options: dict[str, str]


class JournaledTrial(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    key: str  # the changes and the number of steps
    result: TrialResult
    place: str = ""  # the purpose of the trial: a trial for the same purpose is recalled first


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="profile"):
    """A successful profile, or a job with blocks: a resumed tuning run starts from the same findings and evidence."""

    key: str
    folder: str  # its name, in the folder of the trials
    took_s: float
    session: int | None = None  # as of a trial; None: an older journal


# Options whose names in the heading differ from those that users write.
_WORDS = {
    "allowed_safety": "--allow",
    "latency": "--latency",
    "knobs": "--knob",
    "num_steps": "--steps",
    "sbatch_options": "--sbatch-options",
    "uses_history": "--no-history",
}
_MAY_DIFFER = {"max_rounds"}
_ADDED = {"blocks": "False", "latency": "None"}  # options that earlier versions lacked, and their defaults
_HEADING_START = b'{"type":"heading"'
_MAX_HEADING_BYTES = 1 << 20
# Losses and norms can be infinite or NaN, which JSON cannot express, so these are written as strings.
_Line = Heading | JournaledTrial | Profile
_LINE: Any = _Line


def _is_conclusive(result: TrialResult) -> bool:
    """Whether the trial need not be run again. A failure is not conclusive: its cause may have been fixed since."""
    return result.is_complete or result.outcome == "out_of_memory"


def _is_worth_keeping(line: _Line) -> bool:
    return isinstance(line, Profile) or (isinstance(line, JournaledTrial) and _is_conclusive(line.result))


def _as_texts(numbers: Sequence[float]) -> list[float | str]:
    return [number if math.isfinite(number) else str(number) for number in numbers]


def _is_same(before: Heading, now: Heading) -> bool:
    """Whether two headings are of one tuning run: earlier versions had fewer options, and fewer rounds by default."""
    return before.command == now.command and before.tool_version == now.tool_version and not _others(before, now)


def _others(before: Heading, now: Heading) -> list[str]:
    """Return the names of the options whose values differ; what an earlier version lacks had its default there."""
    names = (before.options.keys() | now.options.keys()) - _MAY_DIFFER
    return [
        name for name in names if before.options.get(name, _ADDED.get(name)) != now.options.get(name, _ADDED.get(name))
    ]


def _difference(before: Heading, now: Heading) -> str:
    """Return how the two headings differ, without the values of options, which may be secrets."""
    if before.command != now.command:
        return f": its command is {shlex.join(before.command)}"
    if before.tool_version != now.tool_version:
        return f": it was made by flatout {before.tool_version}, and this is {now.tool_version}"
    others = sorted(_WORDS.get(name, f"--{name}") for name in _others(before, now))
    return f", with other {', '.join(others)}"


def is_journal(path: Path) -> bool:
    """Whether a file is the journal of a tuning run: it begins with a heading, or was truncated within one."""
    if path.is_symlink() or not path.is_file():
        return False
    with open_file(path) as file:
        first = file.readline(_MAX_HEADING_BYTES)
    start = first[: len(_HEADING_START)]
    if not first.endswith(b"\n"):
        return _HEADING_START.startswith(start) or start == _HEADING_START
    try:
        return isinstance(decode_json(first, _LINE, strict=False), Heading)
    except msgspec.DecodeError:
        return start == _HEADING_START  # truncated by a crash


class Journal:
    """The trials of a tuning run. Each trial of an earlier session is recalled once, in order, by its key."""

    def __init__(self, path: Path, heading: Heading, *, may_replace: bool = True) -> None:
        """Read the file.

        Raises InputError if it belongs to another tuning run and has conclusive trials or must not be replaced.
        """
        self.path = path
        self.num_replaced = 0  # number of failed trials in the replaced journal of another tuning run
        self.damaged: list[BadLine] = []  # lines that cannot be read; an interruption truncates the last one
        self.num_lines = 0
        self.num_before = 0
        self.session = 0  # session of the added trials: the number of interruptions before them
        self._profiles: dict[str, Profile] = {}
        self._before: dict[tuple[str, str], list[TrialResult]] = {}
        lines = self._lines_of_file()
        if may_replace and self._may_be_replaced(lines, heading):
            self.num_replaced = sum(isinstance(line, JournaledTrial) for line in lines)
            path.unlink()
            self.num_lines, lines = 0, []
        former = next((line for line in lines if isinstance(line, Heading)), None)
        if former is not None and not _is_same(former, heading):
            how = _difference(former, heading)
            raise InputError(
                f"{path} is the journal of another tuning run{how}",
                hint="pass another --out, or replace it with --force",
            )
        self._end_last_line(is_empty=not lines)
        for line in lines:
            self._keep(line)
        if former is None:
            self._write(heading)

    def _lines_of_file(self) -> list[_Line]:
        """Return the lines that can be read; none if there is no file. Raises InputError if it is another file."""
        if os.path.lexists(self.path) and not is_journal(self.path):
            raise InputError(f"{self.path} is not the journal of a tuning run", hint="pass another --out")
        raw_lines = read_bytes(self.path).splitlines() if self.path.exists() else []
        self.num_lines = len(raw_lines)
        decoded = [self._decoded(raw, number) for number, raw in enumerate(raw_lines, 1)]
        return [line for line in decoded if line is not None]

    def _may_be_replaced(self, lines: Sequence[_Line], heading: Heading) -> bool:
        """Whether the file is the journal of another tuning run that has nothing worth keeping."""
        headings = [line for line in lines if isinstance(line, Heading)]
        if not headings or self.num_damaged or _is_same(headings[0], heading):
            return False
        return not any(map(_is_worth_keeping, lines))

    def _end_last_line(self, *, is_empty: bool) -> None:
        """Complete a line that an interruption truncated; delete the file if that is its heading."""
        text = read_bytes(self.path) if self.path.exists() else b""
        if text and is_empty:
            self.path.unlink()
        elif text and not text.endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")

    def _keep(self, line: _Line) -> None:
        """Keep what a line says about the tuning before it was interrupted."""
        if isinstance(line, Profile):
            self._profiles[line.key] = line
        if isinstance(line, JournaledTrial):
            self.session = max(self.session, line.result.session + 1)
            if _is_conclusive(line.result):
                self._before.setdefault((line.key, line.place), []).append(line.result)
                self.num_before += 1

    def recall(self, key: str, place: str = "") -> TrialResult | None:
        """Return the next earlier trial with this key, of this place if there is one; None if it must be run.

        A trial counts for its set whatever it was run for, so one of another place is as good.
        """
        results = self._before.get((key, place)) or next(
            (trials for (other_key, _), trials in self._before.items() if other_key == key and trials), None
        )
        return results.pop(0) if results else None

    def recall_profile(self, key: str) -> Profile | None:
        return self._profiles.get(key)

    def add_profile(self, profile: Profile) -> None:
        self._write(profile)

    def add(self, key: str, result: TrialResult, place: str = "") -> None:
        self._write(JournaledTrial(key=key, result=result, place=place))

    def _write(self, line: _Line) -> None:
        content: dict[str, Any] = msgspec.to_builtins(line)
        if isinstance(line, JournaledTrial):
            content["result"]["losses"] = _as_texts(line.result.losses)
            for optimizer in content["result"]["gradients"]:
                for name in ("norms", "unclipped"):
                    optimizer[name] = _as_texts(optimizer[name])
        try:
            with open_private(self.path, "ab") as file:
                file.write(msgspec.json.encode(content) + b"\n")
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written to: {(error.strerror or str(error)).lower()}",
                hint="its trials are kept: free some disk space, then run the same command to resume the tuning",
            ) from error

    @property
    def num_damaged(self) -> int:
        return len(self.damaged)

    def _decoded(self, raw: bytes, number: int) -> _Line | None:
        try:
            line: _Line = decode_json(raw, _LINE, strict=False)
        except msgspec.DecodeError as error:
            self.damaged.append(BadLine(file=self.path.name, number=number, problem=str(error)))
            return None
        return _masked(line) if isinstance(line, Heading) else line


def _masked(heading: Heading) -> Heading:
    """Mask what an earlier version of Flatout left in a heading, so that its tuning can be resumed."""
    options = {name: masked_text(value) for name, value in heading.options.items()}
    return msgspec.structs.replace(heading, command=masked_command(heading.command), options=options)
