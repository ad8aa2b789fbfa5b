"""Which running jobs are stopped so that a waiting one fits.

In: what the waiting job needs, and the running jobs that may be stopped for it, in the order in which they should be.
Out: the first of them whose GPUs it can have, without those that are then not needed. Nothing is stopped here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from flatout.schedule.pool import WHOLE, Pool, as_share, is_wide, nodes_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation


class Demand(NamedTuple):
    """What a waiting job needs, and how urgently."""

    level: int
    gpus: int
    allowed: int  # mask of nodes
    since: float  # when it began to wait


def victims_for(demand: Demand, candidates: Iterable[int], sim: Simulation) -> list[int]:
    """Return running jobs whose GPUs, with the free ones, hold a job of this size on one node or on whole nodes."""
    pool, gpus = sim.pool, demand.gpus
    freed_on: dict[int, int] = {}  # whole GPUs, by node
    jobs_on: dict[int, list[int]] = {}
    freed_milli: dict[tuple[int, int], int] = {}
    usable = demand.allowed & ~pool.down
    groups = [] if gpus <= pool.width else pool.groups
    for job in candidates:
        for node, count in _freed_gpus(job, freed_milli, sim):
            if not usable >> node & 1:
                continue
            freed_on[node] = freed_on.get(node, 0) + count
            jobs_on.setdefault(node, []).append(job)
            if not groups and pool.free[node] + freed_on[node] >= gpus:
                return _needed_of(jobs_on[node], node, gpus, sim)
        for _, capacity, mask in groups:
            victims = _whole_nodes(gpus, capacity, mask & usable, freed_on, jobs_on, pool)
            if victims:
                return victims
    return []


def _freed_gpus(job: int, freed_milli: dict[tuple[int, int], int], sim: Simulation) -> list[tuple[int, int]]:
    """Return, by node, the whole GPUs freed if this job stops after those whose shares are in `freed_milli`."""
    placement = sim.placement[job]
    if isinstance(placement, int) or is_wide(placement):
        return [(node, int(count)) for node, count in nodes_of(placement, sim.held_gpus[job])]
    node, slot, milli = as_share(placement)
    already_free = freed_milli.get((node, slot), sim.pool.slots[node, slot])
    freed_milli[node, slot] = already_free + milli
    is_whole_free = freed_milli[node, slot] == WHOLE
    return [(node, int(is_whole_free))]


def _needed_of(jobs: list[int], node: int, gpus: int, sim: Simulation) -> list[int]:
    """Return the jobs on a node, worst first, that must be stopped to free this many GPUs."""
    kept = list(jobs)
    for job in reversed(jobs[:-1]):
        fewer = [other for other in kept if other != job]
        if _free_without(fewer, node, sim) >= gpus:
            kept = fewer
    return kept


def _free_without(jobs: list[int], node: int, sim: Simulation) -> int:
    """Return the whole GPUs that would be free on a node without these jobs."""
    freed_milli: dict[tuple[int, int], int] = {}
    free = sim.pool.free[node]
    for job in jobs:
        for other, count in _freed_gpus(job, freed_milli, sim):
            if other == node:
                free += count
    return free


def _whole_nodes(
    gpus: int, capacity: int, mask: int, freed_on: dict[int, int], jobs_on: dict[int, list[int]], pool: Pool
) -> list[int]:
    """Return the jobs to stop to empty enough whole nodes of a group; an empty list if that is not possible."""
    num_needed = -(-gpus // capacity)
    num_empty = (pool.by_free[capacity] & mask).bit_count()
    num_missing = max(0, num_needed - num_empty)
    emptied = [node for node, count in freed_on.items() if mask >> node & 1 and pool.free[node] + count >= capacity]
    if len(emptied) < num_missing:
        return []
    victims: dict[int, None] = {}
    for node in emptied[:num_missing]:
        victims.update(dict.fromkeys(jobs_on[node]))
    return list(victims)
