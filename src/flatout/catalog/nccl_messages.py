"""Find what a warning of NCCL means, by the table in `nccl_messages.toml`: its cause, the way out, and the source."""

from __future__ import annotations

import re
import tomllib
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import msgspec

_FILE = Path(__file__).with_name("nccl_messages.toml")


class NcclMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A kind of warning that NCCL writes."""

    text: str  # a regular expression
    cause: str
    fix: str
    source: str
    status: Literal["fail", "warn"] = "fail"
    is_consequence: bool = False  # another rank failed first

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.text, re.IGNORECASE)


class _Messages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    date: str
    message: tuple[NcclMessage, ...]


def nccl_message(text: str) -> NcclMessage | None:
    """Return the first entry that fits the text of a warning; None: the table does not have it."""
    for message in nccl_messages():
        if message.pattern.search(text):
            return message
    return None


@cache
def nccl_messages() -> tuple[NcclMessage, ...]:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), type=_Messages).message
