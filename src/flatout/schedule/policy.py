"""The interface of a policy: it is notified of jobs that come and go, and decides which start, stop and wait.

A new policy is a file in `policies/` with a subclass, and an entry in `policies/names.py`; subclass
`flatout.testing.policies.PolicyConformance` to test it. Keep the waiting jobs in the policy; call `sim.start` and the
other methods of `Simulation` from `decide` only.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.schedule.cluster import Cluster
from flatout.schedule.engine import Simulation
from flatout.schedule.pool import Pool


class Policy:
    """Base of all policies; alone it never starts a job."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""  # one line for lists
    is_oracle: ClassVar[bool] = False  # knows how long jobs will run: a bound, not a policy for a real cluster
    has_own_nodes: ClassVar[bool] = False  # `own_nodes` divides the cluster between the teams

    def attach(self, sim: Simulation) -> None:
        """Called once before the first event; `sim` shows the jobs as a scheduler sees them."""
        self.sim = sim

    def pool(self, cluster: Cluster) -> Pool:
        """Return the pool, which decides on which nodes a job is placed."""
        return Pool(cluster.nodes)

    def own_nodes(self, team: str, cluster: Cluster) -> int:
        """Return the mask of the nodes that a team may use."""
        raise NotImplementedError

    def submitted(self, job: int) -> None:
        """A job was submitted, or has work again after its GPUs were reclaimed."""

    def stopped(self, job: int) -> None:
        """A running job was stopped by a node's failure and waits again."""

    def ended(self, job: int) -> None:
        """A job ended; its GPUs are free."""

    def phase_changed(self, job: int) -> None:
        """A running job began to leave its GPUs idle (`sim.idle_since[job]` is a time), or works again (None)."""

    def decide(self) -> None:
        """Called once after all events of a time."""

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the result must know, such as the error of the predictions."""
        return ()
