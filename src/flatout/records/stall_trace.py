"""What the second trace of a recording shows: the steps around one stall, on every rank.

These steps are never averaged with the regular traced steps.
"""

from __future__ import annotations

import msgspec


class TracedActivity(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of the event in the trace
    seconds: float  # in the stalled step, beyond a regular step of the same trace
    is_communication: bool


class StalledRank(msgspec.Struct, frozen=True, kw_only=True):
    """The stalled step of one rank."""

    rank: int
    step: int  # the longest of its traced steps: a rank can wait in its next step instead
    step_s: float
    excess_s: float  # beyond the other traced steps
    activities: tuple[TracedActivity, ...]  # those with the most time, longest first
    idle_s: float  # in which no event of any thread was recorded, beyond a regular step

    @property
    def waits(self) -> bool:
        """Whether most of the excess is communication, that is waiting for another rank."""
        waited_s = sum(activity.seconds for activity in self.activities if activity.is_communication)
        return waited_s >= 0.5 * self.excess_s


class StallTrace(msgspec.Struct, frozen=True, kw_only=True):
    step: int  # that was due to stall
    period_steps: int  # from stall to stall, as the recorder saw it
    ranks: tuple[StalledRank, ...]
