"""The interface of a policy: it is notified when jobs arrive and leave, and decides which jobs start, stop and wait.

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
    """Base class of all policies; it never starts a job itself."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""  # one-line description for lists
    is_oracle: ClassVar[bool] = False  # knows how long jobs will run, so it cannot run on a real cluster
    has_own_nodes: ClassVar[bool] = False  # `own_nodes` divides the cluster among the teams

    def attach(self, sim: Simulation) -> None:
        """Store the simulation; called once, before the first event. `sim` shows the jobs as a scheduler sees them."""
        self.sim = sim

    def pool(self, cluster: Cluster) -> Pool:
        """Return the pool, which decides on which nodes a job is placed."""
        return Pool(cluster.nodes)

    def own_nodes(self, team: str, cluster: Cluster) -> int:
        """Return the mask of the nodes that a team may use."""
        raise NotImplementedError

    def submitted(self, job: int) -> None:
        """Handle a job that was submitted, or has work again after its GPUs were reclaimed."""

    def stopped(self, job: int) -> None:
        """Handle a running job that a node failure stopped; it waits again."""

    def ended(self, job: int) -> None:
        """Handle the end of a job; its GPUs are free."""

    def phase_changed(self, job: int) -> None:
        """Handle a running job that went idle (`sim.idle_since[job]` is a time) or works again (it is None)."""

    def decide(self) -> None:
        """Start and stop jobs; called once after all events of equal time."""

    def notes(self) -> tuple[str, ...]:
        """Return notes that a reader of the result needs, such as the error of the predictions."""
        return ()
