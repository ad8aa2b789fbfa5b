"""The journal of a tuning: each trial as a line, from which an interrupted tuning goes on.

A line is written when its trial is over, so what an interruption cuts short is run again. The first line says of which
tuning: with another command, or other files of ours, nothing is resumed. Where no trial of another one says anything,
as after a typo in its command, its journal gives way.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError, OutputError
from flatout.records.trial import TrialResult


class Heading(msgspec.Struct, frozen=True, kw_only=True, tag="heading"):
    tool_version: str
    command: tuple[str, ...]
    options: dict[str, str]


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    key: str  # what was run: the changes, and the number of steps
    result: TrialResult
    place: str = ""  # what for: the trials of a pair are given back as a pair


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="profile"):
    """A profile that succeeded: what is resumed starts from the same findings, and so tries the same changes."""

    key: str
    folder: str  # its name, beside the trials'
    took_s: float


# Options of a heading as users write them, where that is not their name.
_WORDS = {
    "allowed_safety": "--allow",
    "knobs": "--knob",
    "num_steps": "--steps",
    "sbatch_options": "--sbatch-options",
    "uses_history": "--no-history",
}
# Losses and norms may be no numbers or infinite, for which JSON has no word: they are written as texts.
_LINE = msgspec.json.Decoder(Heading | Entry | Profile, strict=False)


def _says_something(result: TrialResult) -> bool:
    """What failed may have failed for a reason that is mended since: it is run again."""
    return result.is_complete or result.outcome == "out_of_memory"


def _is_worth_keeping(line: Heading | Entry | Profile) -> bool:
    return isinstance(line, Profile) or (isinstance(line, Entry) and _says_something(line.result))


def _as_texts(numbers: Sequence[float]) -> list[float | str]:
    return [number if math.isfinite(number) else str(number) for number in numbers]


def _difference(before: Heading, now: Heading) -> str:
    """In what, without the values of options, in which there may be secrets."""
    if before.command != now.command:
        return f": its command is {shlex.join(before.command)}"
    if before.tool_version != now.tool_version:
        return f": flatout {before.tool_version} made it, and this is {now.tool_version}"
    names = [
        name for name in before.options.keys() | now.options.keys() if before.options.get(name) != now.options.get(name)
    ]
    others = sorted(_WORDS.get(name, f"--{name}") for name in names)
    return f", with other {', '.join(others)}"


class Journal:
    """Trials of before are given back once each, in their order, by what was run."""

    def __init__(self, path: Path, heading: Heading, *, may_replace: bool = True) -> None:
        """Raises InputError where the file is of another tuning with something to lose, or not `may_replace`."""
        self.path = path
        self.num_replaced = 0  # failed trials of another tuning, whose journal gave way
        self.num_damaged = 0
        self.num_before = 0
        self.session = 0  # of what is added: counts the interruptions
        self._profiles: dict[str, Profile] = {}
        self._before: dict[tuple[str, str], list[TrialResult]] = {}
        text = path.read_bytes() if path.exists() else b""
        lines = text.splitlines()
        decoded = [line for raw in lines if (line := self._decoded(raw)) is not None]
        headings = [line for line in decoded if isinstance(line, Heading)]
        is_worthless = bool(headings) and not self.num_damaged and not any(map(_is_worth_keeping, decoded))
        if may_replace and is_worthless and headings[0] != heading:
            self.num_replaced = sum(isinstance(line, Entry) for line in decoded)
            path.unlink()
            text, decoded, headings, lines = b"", [], [], []
        is_foreign = not headings and (len(lines) > 1 or bool(decoded))
        if is_foreign or (headings and headings[0] != heading):
            how = _difference(headings[0], heading) if headings else ""
            raise InputError(
                f"{path} is the journal of another tuning{how}", hint="choose another --out, or replace it with --force"
            )
        if text and not text.endswith(b"\n"):  # cut short by an interruption
            with path.open("ab") as file:
                file.write(b"\n")
        for line in decoded:
            if isinstance(line, Profile):
                self._profiles[line.key] = line
            if isinstance(line, Entry):
                self.session = max(self.session, line.result.session + 1)
            if isinstance(line, Entry) and _says_something(line.result):
                self._before.setdefault((line.key, line.place), []).append(line.result)
                self.num_before += 1
        if not headings:
            self._write(heading)

    def recall(self, key: str, place: str = "") -> TrialResult | None:
        """The next trial of before that was the same, and for the same; None: run it."""
        found = self._before.get((key, place))
        return found.pop(0) if found else None

    def recall_profile(self, key: str) -> Profile | None:
        return self._profiles.get(key)

    def add_profile(self, profile: Profile) -> None:
        self._write(profile)

    def add(self, key: str, result: TrialResult, place: str = "") -> None:
        self._write(Entry(key=key, result=result, place=place))

    def _write(self, line: Heading | Entry | Profile) -> None:
        made: dict[str, Any] = msgspec.to_builtins(line)
        if isinstance(line, Entry):
            made["result"]["losses"] = _as_texts(line.result.losses)
            for optimizer in made["result"]["gradients"]:
                for name in ("norms", "unclipped"):
                    optimizer[name] = _as_texts(optimizer[name])
        try:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(made) + b"\n")
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written to: {(error.strerror or str(error)).lower()}",
                hint="the trials that are in it are kept: make room, and the same command goes on",
            ) from error

    def _decoded(self, raw: bytes) -> Heading | Entry | Profile | None:
        try:
            line: Heading | Entry | Profile = _LINE.decode(raw)
            return line
        except msgspec.DecodeError:
            self.num_damaged += 1
            return None
