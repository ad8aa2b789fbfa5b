"""What the profiler itself may have cost: it slows the host, and so makes jobs look host-bound.

Measured on 15 example jobs with known untraced step times: where the host sets the pace, recording took 2 to 5 us a
recorded host event and 37 to 50 % of the time that the host was not blocked; the idle time of the GPU shrank by
50 to 80 % without it. Where the GPU sets the pace, nothing of it is seen.
"""

from __future__ import annotations

import msgspec

from flatout.records.timeline import RankFacts

NS_PER_EVENT = 4_000
MAX_SHARE_OF_HOST = 0.45
MAX_SHARE_OF_IDLE = 0.75


class RecorderCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a step that recording added."""

    idle_s: float  # to the idle time of a GPU that waits for its host
    host_s: float  # to the host's own work, hidden or not
    source: str  # measured: the untraced step time is known; assumed: from the example jobs


def recorder_cost(
    facts: RankFacts, num_steps: int, idle_s: float, step_s: float, untraced_step_s: float | None
) -> RecorderCost:
    """The recorder's part of `idle_s` host-bound idle seconds a step on the rank of `facts`."""
    if untraced_step_s is not None:
        measured_s = max(step_s - untraced_step_s, 0.0)
        return RecorderCost(idle_s=min(measured_s, idle_s), host_s=measured_s, source="measured")
    events_s = facts.num_host_events / num_steps * NS_PER_EVENT / 1e9
    running_s = max(facts.host_s - facts.host_blocked_s, 0.0) / num_steps
    host_s = min(events_s, MAX_SHARE_OF_HOST * running_s)
    return RecorderCost(idle_s=min(host_s, MAX_SHARE_OF_IDLE * idle_s), host_s=host_s, source="assumed")
