"""Phases of a job: alternating periods of work and of holding GPUs idle, in seconds on the job's own timeline.

In: `ClusterJob.phases`, which begin with work. Out: the phase at a position, and the idle seconds between two
positions.
"""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING_S = 1e-6  # a position this close to the end of a phase counts as in the next phase


def is_idle(index: int) -> bool:
    """Whether the phase with this index holds GPUs without using them."""
    return index % 2 == 1


def phase_at(phases: Sequence[float], position_s: float) -> tuple[int, float]:
    """Return the index of the phase at a position, and the position at which that phase ends."""
    end_s = 0.0
    for index, length_s in enumerate(phases):
        end_s += length_s
        if position_s + _ROUNDING_S < end_s:
            return index, end_s
    return len(phases) - 1, end_s


def idle_between(phases: Sequence[float], first_s: float, last_s: float) -> float:
    """Return the idle seconds between two positions."""
    idle_s, start_s = 0.0, 0.0
    for index, length_s in enumerate(phases):
        end_s = start_s + length_s
        if is_idle(index):
            idle_s += max(0.0, min(last_s, end_s) - max(first_s, start_s))
        start_s = end_s
    return idle_s
