"""Look up an Xid by its number in `xids.toml`: its name, whether a job's own work can cause it, and the way out."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("xids.toml")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    fix: str
    is_job_fault: bool = False
    has_no_effect: bool = False


class _Xids(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    source_of_is_job_fault: str
    source_of_fix: str
    fix_of_others: str
    date: str
    xid: dict[int, _Entry]


def xid_name(number: int) -> str | None:
    """Return NVIDIA's name for the Xid; None if the catalogue does not have it."""
    entry = _xids().xid.get(number)
    return entry.name if entry is not None else None


def is_job_fault(number: int) -> bool:
    """Whether the job's own work can cause the Xid on a healthy GPU."""
    entry = _xids().xid.get(number)
    return entry is not None and entry.is_job_fault


def xid_fix(number: int) -> str:
    """Return the way to fix the Xid."""
    entry = _xids().xid.get(number)
    return entry.fix if entry is not None else _xids().fix_of_others


def has_no_effect(number: int) -> bool:
    """Whether the driver only records something: the job and the GPU continue, and the host stays good."""
    entry = _xids().xid.get(number)
    return entry is not None and entry.has_no_effect


XID_CLASSES = ("job", "recorded", "machine")


def xid_class(number: int) -> str:
    """Return whose Xid this is: "job", "machine", or "recorded" if it has no effect."""
    if is_job_fault(number):
        return "job"
    return "recorded" if has_no_effect(number) else "machine"


@cache
def _xids() -> _Xids:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), type=_Xids, strict=False)
