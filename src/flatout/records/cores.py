"""The cores that a rank can use: the one rule for proposals, predictions and the model of loaders.

In: what a host's control group and affinity allow, the ranks that share it, and what other programs keep busy. Work
that computes gains only from cores that nobody uses, so a rank has its share of those that other programs leave. These
share fairly: a job that wants all of its C cores, while others want b, takes (C + b) / C times as long.
"""

from __future__ import annotations

FOREIGN_CORES = 0.1  # of the cores that the job may use, busy with other programs; less is the system's own noise


def cores_of_rank(allowed: float, num_ranks: int, busy_by_others: float | None = None) -> float:
    """Return the cores that each of a host's ranks can use."""
    others = busy_by_others or 0.0
    if others < FOREIGN_CORES * allowed:
        others = 0.0
    return allowed * allowed / (allowed + others) / num_ranks
