"""The longest that a share of a model's calls may take, as `flatout tune --latency` states it."""

from __future__ import annotations

import msgspec


class CallLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`p99<50ms`: 99 of 100 calls take at most 50 ms."""

    percentile: float
    most_s: float
    text: str  # as the user wrote it
