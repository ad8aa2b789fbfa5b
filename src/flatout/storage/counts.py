"""The counters of one mount at one time, and what happened between two times.

In: two `Counts`. Out: a `MountUse`. A counter of 32 bits can wrap; any other counter that falls was reset, e.g. by
mounting again: then what it counted since is taken, in the time since then if that is known.
"""

from __future__ import annotations

import msgspec

from flatout.records.storage import MountUse

MAX_DIGITS = 30  # of a number in a text: no counter has more
_WRAP = float(1 << 32)
_FIELDS = (
    "num_reads",
    "read_bytes",
    "read_s",
    "num_metadata",
    "metadata_s",
    "queued_s",
    "num_requests",
    "num_resent",
    "asked_bytes",
)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a mount since it was mounted; None: not counted."""

    age_s: float | None = None  # since it was mounted
    num_reads: float | None = None
    read_bytes: float | None = None
    read_s: float | None = None
    num_metadata: float | None = None
    metadata_s: float | None = None
    queued_s: float | None = None
    num_requests: float | None = None
    num_resent: float | None = None
    asked_bytes: float | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    use: MountUse
    was_reset: bool


def difference(before: Counts, after: Counts, elapsed_s: float) -> Difference:
    """Return what happened between two times, `elapsed_s` apart."""
    was_reset = _is_younger(before, after) or any(
        _fell(getattr(before, name), getattr(after, name)) for name in _FIELDS
    )
    values = {}
    for name in _FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if new is None or (old is None and not was_reset):
            continue
        values[name] = new if was_reset else _added(old, new)
    if was_reset and after.age_s is not None:
        elapsed_s = min(elapsed_s, after.age_s)
    return Difference(use=MountUse(elapsed_s=max(elapsed_s, 0.0), **values), was_reset=was_reset)


def added(uses: tuple[MountUse, ...]) -> MountUse:
    """Return the sum of several times; a number that one of them lacks is the sum of the others."""
    values: dict[str, float] = {}
    for use in uses:
        for name in _FIELDS:
            value = getattr(use, name)
            if value is not None:
                values[name] = values.get(name, 0.0) + value
    return MountUse(elapsed_s=sum(use.elapsed_s for use in uses), **values)


def _is_younger(before: Counts, after: Counts) -> bool:
    return before.age_s is not None and after.age_s is not None and after.age_s < before.age_s


def _fell(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and new < old and not _has_wrapped(old, new)


def _has_wrapped(old: float, new: float) -> bool:
    """Whether a counter of 32 bits began again at 0: it was in the upper half, and is now in the lower."""
    return new < old < _WRAP and old >= _WRAP / 2 > new


def _added(old: float, new: float) -> float:
    return new - old + _WRAP if _has_wrapped(old, new) else new - old
