"""Detect when ranks are suspended: their state and the polling times -> suspended time by rank.

A rank is suspended while its process is stopped (state T), as by SIGSTOP. If the last poll was long ago, this process
was itself suspended, together with the ranks: Slurm's `scontrol suspend` suspends all processes of a job.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.keep.heartbeats import HeartbeatSample

_UNSEEN_NS = 10_000_000_000  # polls occur four times per second, and examining a hang takes seconds


class Suspensions:
    """Follows one run; `look` is called a few times per second."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._were_stopped: set[str] = set()

    def look(self, now_ns: int, ranks: Sequence[HeartbeatSample]) -> dict[int, int]:
        """Return the nanoseconds for which ranks were suspended since the last poll, by their index in `ranks`."""
        since_ns = 0 if self._last_ns is None else now_ns - self._last_ns
        self._last_ns = now_ns
        are_stopped = {pulse.name for pulse in ranks if pulse.is_stopped}
        stopped_throughout = are_stopped & self._were_stopped
        self._were_stopped = are_stopped
        if since_ns > _UNSEEN_NS:
            return {place: since_ns for place, pulse in enumerate(ranks) if pulse.is_alive}
        return {place: since_ns for place, pulse in enumerate(ranks) if pulse.name in stopped_throughout}
