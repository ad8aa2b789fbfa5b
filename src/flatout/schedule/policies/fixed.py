"""Fixed shares: each team owns whole nodes in proportion to the GPU-hours of its jobs, and lends none.

Rule: FIFO within each team, on its own nodes. Every team has at least the nodes that its widest job needs; if that is
more than its share, the teams with the largest shares get fewer. A team without jobs has no nodes. A job that its
team's nodes can't hold, because of their type, may use any node. Source: common practice on today's clusters; the
baseline of Flatout's targets. When wrong: whenever one team waits while another's nodes are free. The proportions come
from the whole history, which no operator knows beforehand, so real shares are worse than these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from flatout.errors import InputError
from flatout.schedule.cluster import Cluster
from flatout.schedule.policy import Policy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation


def shares(demand: dict[str, tuple[float, int]], num_nodes: int) -> dict[str, int]:
    """Return each team's number of nodes, from its GPU-hours and its widest job's nodes; they sum to `num_nodes`."""
    num_needed = sum(needed for _, needed in demand.values())
    if num_needed > num_nodes:
        raise InputError(
            f"fixed shares need the nodes of each team's widest job, {num_needed} in total,"
            f" but the cluster has {num_nodes}",
            hint="add nodes, or omit the policy `fixed`",
        )
    nodes = {team: needed for team, (_, needed) in demand.items()}

    def webster_quotient(team: str) -> float:
        """Return the team's quotient by Webster's rule, which keeps proportions as well as whole nodes allow."""
        gpu_hours, _ = demand[team]
        return gpu_hours / (2 * nodes[team] + 1)

    for _ in range(num_nodes - num_needed):
        team = max(nodes, key=lambda name: (webster_quotient(name), name))
        nodes[team] += 1
    return nodes


class Fixed(Policy):
    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "each team owns nodes in proportion to its GPU-hours; FIFO within a team, no lending"
    has_own_nodes: ClassVar[bool] = True

    def __init__(self, demand: dict[str, tuple[float, int]]) -> None:
        """Store `demand`: by team, the GPU-hours of its jobs and the number of nodes that its widest job needs."""
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
        self._changed: dict[str, None] = {}  # teams with jobs that were submitted or ended
        self._teams_are_apart = all(shape.allowed & ~self._masks[shape.team] == 0 for shape in sim.shapes)

    def _queue_of(self, job: int) -> deque[int]:
        return self.queues[self.sim.jobs[job].team]

    def submitted(self, job: int) -> None:
        self._queue_of(job).append(job)
        self._changed[self.sim.jobs[job].team] = None

    def stopped(self, job: int) -> None:
        self._queue_of(job).appendleft(job)

    def ended(self, job: int) -> None:
        self._changed[self.sim.jobs[job].team] = None

    def _teams_to_serve(self) -> Iterable[str]:
        """Return the teams whose jobs changed, or all teams if some share nodes or nodes were repaired."""
        if self._teams_are_apart and not self.sim.num_failures:
            return self._changed
        return self.queues

    def decide(self) -> None:
        for team in self._teams_to_serve():
            queue = self.queues[team]
            while queue and self.sim.start(queue[0]):
                queue.popleft()
        self._changed.clear()

    def notes(self) -> tuple[str, ...]:
        counts = ", ".join(f"{team or '(no team)'} {mask.bit_count()}" for team, mask in self._masks.items())
        return (f"nodes by team: {counts}",)
