"""What a policy is: it hears of jobs that come and go, and decides what starts, stops and waits.

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
    """Base of all policies; by itself it never starts a job."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""  # one line for lists
    is_oracle: ClassVar[bool] = False  # knows how long jobs will run: a bound, no policy for a real cluster
    has_own_nodes: ClassVar[bool] = False  # `own_nodes` divides the cluster between the teams

    def attach(self, sim: Simulation) -> None:
        """Called once before the first event, with the jobs as far as a scheduler sees them."""
        self.sim = sim

    def pool(self, cluster: Cluster) -> Pool:
        """The rule of placement."""
        return Pool(cluster.nodes)

    def own_nodes(self, team: str, cluster: Cluster) -> int:
        """The mask of the nodes that a team may use."""
        raise NotImplementedError

    def submitted(self, job: int) -> None:
        """A job came, or came back from being idle."""

    def stopped(self, job: int) -> None:
        """A running job was stopped by a node's failure and waits again."""

    def ended(self, job: int) -> None:
        """A job ended; its GPUs are free."""

    def phase_changed(self, job: int) -> None:
        """A running job began to leave its GPUs idle (`sim.idle_since[job]` is a time), or works again (None)."""

    def decide(self) -> None:
        """Called once after all that happened at a time."""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the result must know, such as the error of its predictions."""
        return ()
