"""The outcome of a check."""

from __future__ import annotations

import msgspec

from flatout.records.doctor import Status


class CheckOutcome(msgspec.Struct, frozen=True):
    status: Status
    reason: str
    cost: str | None = None  # of what was found; None: the check's own text applies
    fix: str | None = None
    source: str | None = None
    bandwidth_share: float | None = None  # of a defective path: its bandwidth now, as a share of that after the fix
