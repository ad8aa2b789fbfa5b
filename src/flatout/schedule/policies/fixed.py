"""Fixed shares: each team owns whole nodes in proportion to the GPU-hours of its jobs, and nothing is lent.

Rule: FIFO in each team, on its own nodes. Every team has at least the nodes that its widest job needs; where that is
more than its share, the largest shares give nodes up. A team that has no job has no node. A job that its team's nodes
can't hold, for their type, may use any.
Source: how many clusters are divided today; the baseline of Flatout's targets.
When wrong: whenever one team waits while another's nodes are free. The proportions come from the whole history, which
no operator knows beforehand, so real shares are worse than these.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from flatout.errors import InputError
from flatout.schedule.cluster import Cluster
from flatout.schedule.policy import Policy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation


def shares(demand: dict[str, tuple[float, int]], num_nodes: int) -> dict[str, int]:
    """Nodes for each team, from its GPU-hours and the nodes of its widest job; they sum to `num_nodes`."""
    least = sum(needed for _, needed in demand.values())
    if least > num_nodes:
        raise InputError(
            f"fixed shares need the nodes of each team's widest job, {least} in all, but the cluster has {num_nodes}",
            hint="give it more nodes, or leave the policy `fixed` out",
        )
    given = {team: needed for team, (_, needed) in demand.items()}
    for _ in range(num_nodes - least):
        # Webster's rule: proportions are kept as well as whole nodes allow.
        team = max(given, key=lambda name: (demand[name][0] / (2 * given[name] + 1), name))
        given[team] += 1
    return given


class Fixed(Policy):
    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "each team owns nodes in proportion to its GPU-hours, FIFO within, nothing is lent"
    has_own_nodes: ClassVar[bool] = True

    def __init__(self, demand: dict[str, tuple[float, int]]) -> None:
        """`demand`: by team the GPU-hours of its jobs, and the number of nodes that its widest job needs."""
        self._demand = demand
        self._masks: dict[str, int] = {}

    def own_nodes(self, team: str, cluster: Cluster) -> int:
        if not self._masks:
            first = 0
            for name, count in sorted(shares(self._demand, len(cluster.nodes)).items()):
                self._masks[name] = ((1 << count) - 1) << first
                first += count
        return self._masks[team]

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.queues: dict[str, deque[int]] = {job.team: deque() for job in sim.jobs}
        self._changed: dict[str, None] = {}
        self._is_apart = all(shape.allowed & ~self._masks[shape.team] == 0 for shape in sim.shapes)

    def submitted(self, job: int) -> None:
        self.queues[self.sim.jobs[job].team].append(job)
        self._changed[self.sim.jobs[job].team] = None

    def stopped(self, job: int) -> None:
        self.queues[self.sim.jobs[job].team].appendleft(job)

    def ended(self, job: int) -> None:
        self._changed[self.sim.jobs[job].team] = None

    def decide(self) -> None:
        # Where no node is shared or comes back from repair, only the teams that something happened to are looked at.
        for team in self._changed if self._is_apart and not self.sim.failed else self.queues:
            queue = self.queues[team]
            while queue and self.sim.start(queue[0]):
                queue.popleft()
        self._changed.clear()

    def notes(self) -> tuple[str, ...]:
        counts = ", ".join(f"{team or '(no team)'} {mask.bit_count()}" for team, mask in self._masks.items())
        return (f"nodes by team: {counts}",)
