"""Data read from a machine, as raw text: checks judge only these data, on this or another machine."""

from __future__ import annotations

import msgspec


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a command, or the reason why there is none."""

    text: str | None = None
    problem: str = ""  # why `text` is missing or incomplete
    is_missing: bool = False  # the command is not installed here


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Raw texts from one machine.

    A source that is in no field was not read; a missing source never means that all is well.
    """

    host: str | None = None
    taken_at: str | None = None  # UTC, ISO 8601
    read_from: tuple[str, ...] = ()  # `this machine`, or the files that were given
    files: dict[str, str] = msgspec.field(default_factory=dict)  # path on that machine -> text
    links: dict[str, str] = msgspec.field(default_factory=dict)  # path of a symbolic link -> its target
    problems: dict[str, str] = msgspec.field(default_factory=dict)  # path -> why it was not read
    outputs: dict[str, Output] = msgspec.field(default_factory=dict)  # command line, or kind of log -> its text
    environment: dict[str, str] | None = None  # only variables that training reads; None: not read
