"""The hang timeout: how long a rank can be silent, by its phase, learned from the job's own steps.

In: the ranks' heartbeat samples, repeatedly. Out: the seconds without any event after which a rank is examined, and
those after which a stuck rank counts as hung. No fixed time fits: a step takes 50 ms or 50 s, an evaluation an hour.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.keep.heartbeats import HeartbeatSample

AT_LEAST_S = 10.0
_LOOKS_S = 2.0  # time between the first and the last poll of a silent job
_UNWITNESSED_S = 60.0  # if no other rank waits, or no stack is available: the rank may only be pausing
_TIMES_MEDIAN, _TIMES_LONGEST = 10.0, 3.0
_MOST_FROM_LONGEST_S = 60.0  # one long stall must not delay the detection of the next hang by an hour
_FIRST_STEP_S = 300.0  # loading, rendezvous, first compilation: no step time is known yet
# For phases that are expected to be long. The first value applies to the first such phase, whose duration is unknown.
_FIRST_LONG_PHASE_S, _LATER_LONG_PHASE_S, _COMPILING_S = 600.0, 60.0, 1800.0
# Limits of a rank that works while others wait for it: in one place, or with a changing stack. A collective of torch
# gives up after 10 minutes with NCCL and 30 with gloo.
_BUSY_CEILING_S, _LONG_BUSY_CEILING_S, _MOVING_CEILING_S = 600.0, 1800.0, 3600.0
LONG_PHASES = ("checkpoint", "evaluation", "network")


class HangTimeout:
    """The timeout of one attempt."""

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s  # set by the user, for all phases
        self._changed: dict[
            str, tuple[int, float, str, int]
        ] = {}  # number of events, time of the last change, phase, steps
        self._longest_silence_s = 0.0

    @property
    def is_fixed(self) -> bool:
        """Whether the user has set the limit."""
        return self._fixed_s is not None

    def is_just_before(self, silence_s: float) -> bool:
        """Whether a limit set by the user is almost reached."""
        return self._fixed_s is not None and silence_s < self._fixed_s

    def forgive(self, gap_s: float) -> None:
        """Do not count this time as silence, because the ranks could not be observed."""
        self._changed = {
            name: (events, at_s + gap_s, phase, steps) for name, (events, at_s, phase, steps) in self._changed.items()
        }

    def ceiling_s(self, phase: str, *, is_moving: bool) -> float:
        """Return how long others may wait for a rank that works without any event."""
        if is_moving:
            return _MOVING_CEILING_S
        return _LONG_BUSY_CEILING_S if phase in (*LONG_PHASES, "compilation") else _BUSY_CEILING_S

    def silence_s(self, now: float, pulse: HeartbeatSample) -> float:
        """Return the seconds since the rank's last event, by this host's clock; the clocks of hosts differ."""
        before = self._changed.get(pulse.name)
        if before is None or before[0] != pulse.num_events:
            if before is not None and before[3] > 1 and before[2] not in LONG_PHASES:
                self._longest_silence_s = max(self._longest_silence_s, now - before[1])
            self._changed[pulse.name] = (pulse.num_events, now, pulse.phase, pulse.num_steps)
            return 0.0
        return now - before[1]

    def look_after_s(self, ranks: Sequence[HeartbeatSample]) -> float:
        """Return the seconds of silence after which a rank is examined."""
        if self._fixed_s is not None:  # the looks take two seconds, and end when the limit is reached
            return max(self._fixed_s - _LOOKS_S, self._fixed_s / 2)
        medians = [median for pulse in ranks if (median := median_step_s(pulse)) is not None]
        if not medians or min(pulse.num_steps for pulse in ranks) < 3:
            return _FIRST_STEP_S
        longest = min(self._longest_silence_s * _TIMES_LONGEST, _MOST_FROM_LONGEST_S)
        return max(AT_LEAST_S, _TIMES_MEDIAN * max(medians), longest)

    def hangs_after_s(self, phase: str, ranks: Sequence[HeartbeatSample], *, is_witnessed: bool) -> float:
        """Return the seconds of silence after which a stuck rank counts as hung.

        `is_witnessed`: the rank's stack was seen, and other ranks wait.
        """
        if self._fixed_s is not None:
            return self._fixed_s
        look = self.look_after_s(ranks)
        if phase == "compilation":
            return max(look, _COMPILING_S)
        if phase in LONG_PHASES:
            longest = max(one.longest_s.get(phase, 0.0) for one in ranks)
            known = max(_LATER_LONG_PHASE_S, _TIMES_LONGEST * longest)
            return max(look, known if longest else _FIRST_LONG_PHASE_S)
        return look if is_witnessed else max(look, _UNWITNESSED_S)


def median_step_s(pulse: HeartbeatSample) -> float | None:
    """Return the median step time from the heartbeat's buckets, within a factor of sqrt(2); None if unknown."""
    num = sum(pulse.step_buckets)
    seen = 0
    for bucket, count in enumerate(pulse.step_buckets):
        seen += count
        if num and 2 * seen >= num:
            return float(2.0**bucket) / 1e9 / 1.41
    return None
