"""Which format a job history has, by its first row, and the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.schedule.jobs import JobHistory
from flatout.schedule.load import acme, gavel, helios, openb, philly, plain
from flatout.schedule.load.rows import header

# In order: the first whose columns are all there.
FORMATS: tuple[tuple[str, tuple[str, ...], Callable[[Path], JobHistory]], ...] = (
    ("plain", plain.COLUMNS, plain.load),
    ("philly", philly.COLUMNS, philly.load),
    ("openb", openb.COLUMNS, openb.load),
    ("acme", acme.COLUMNS, acme.load),
    ("helios", helios.COLUMNS, helios.load),
)


def load(path: Path) -> JobHistory:
    """The jobs of a history in any of the known formats."""
    if path.suffix == ".trace":
        return gavel.load(path)
    names = {name.strip() for name in header(path)}
    for _, columns, read in FORMATS:
        if names >= set(columns):
            return read(path)
    if any("|" in name for name in names):
        return _sacct(path)
    known = ", ".join(name for name, _, _ in FORMATS)
    raise InputError(
        f"{path}: its columns must be those of a known job history ({known}, sacct or gavel), but are of none",
        hint=f"a plain CSV needs the columns {', '.join(plain.COLUMNS)}",
    )


def _sacct(path: Path) -> JobHistory:
    from importlib import import_module

    from flatout.schedule.load import attempts

    read = import_module("flatout.read.sacct").read_sacct(path)
    loaded = attempts.load(read.attempts)
    reasons = Counter(f"unreadable: {each.reason}" for each in read.left_out)
    if not read.attempts and read.num_steps:
        reasons["a row of a job's step, not of a job"] = read.num_steps
    return msgspec.structs.replace(
        loaded, left_out={**loaded.left_out, **dict(reasons.most_common(5))}, notes=(*loaded.notes, *read.notes)
    )
