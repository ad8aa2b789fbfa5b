"""The policies by the names that the command line takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flatout.errors import UsageError
from flatout.schedule.cluster import Cluster
from flatout.schedule.jobs import ClusterJob
from flatout.schedule.policies.default import Default
from flatout.schedule.policies.easy import Easy, EasyOracle
from flatout.schedule.policies.fairness import FinishTimeFairness
from flatout.schedule.policies.fgd import FragmentationGradient
from flatout.schedule.policies.fifo import Fifo
from flatout.schedule.policies.fixed import Fixed
from flatout.schedule.policies.goodput import GoodputElastic
from flatout.schedule.policies.heterogeneity import Heterogeneity
from flatout.schedule.policies.las import LeastAttainedService
from flatout.schedule.policies.packing import Packing
from flatout.schedule.policies.priority import Priority
from flatout.schedule.policies.quota import Quota
from flatout.schedule.policies.shortest import QuasiShortestService, ShortestFirst, ShortestFirstOracle
from flatout.schedule.policies.skip import Skip
from flatout.schedule.policies.srtf import ShortestRemaining, ShortestRemainingOracle
from flatout.schedule.policy import Policy

_ALL: tuple[type[Policy], ...] = (
    Default,
    Fifo,
    Fixed,
    Skip,
    Easy,
    EasyOracle,
    Priority,
    Quota,
    ShortestFirst,
    ShortestFirstOracle,
    ShortestRemaining,
    ShortestRemainingOracle,
    QuasiShortestService,
    LeastAttainedService,
    FinishTimeFairness,
    Heterogeneity,
    GoodputElastic,
    FragmentationGradient,
    Packing,
)
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}


def make(name: str, jobs: Sequence[ClusterJob], cluster: Cluster) -> Policy:
    """Return a new policy for one simulation."""
    check([name])
    if name == Fixed.name:
        return Fixed(demand_by_team(jobs, cluster))
    if name == Quota.name:
        return Quota({team: gpu_hours for team, (gpu_hours, _) in demand_by_team(jobs, cluster).items()})
    policy: Callable[[], Policy] = POLICIES[name]
    return policy()


def check(names: Sequence[str]) -> None:
    """Raise a UsageError if a name is not that of a policy, or is given twice."""
    for index, name in enumerate(names):
        if name not in POLICIES:
            raise UsageError(f"--policy must be one of {', '.join(POLICIES)}, but is `{name}`")
        if name in names[:index]:
            raise UsageError(f"each --policy must be passed only once, but `{name}` is passed twice")


def demand_by_team(jobs: Sequence[ClusterJob], cluster: Cluster) -> dict[str, tuple[float, int]]:
    """Return the GPU-hours of each team's jobs, and the number of nodes that its widest job needs."""
    gpus_per_node = max(node.num_gpus for node in cluster.nodes)
    demand: dict[str, tuple[float, int]] = {}
    for job in jobs:
        gpu_hours, num_nodes = demand.get(job.team, (0.0, 1))
        gpu_hours += job.num_gpus * job.gpu_share * job.duration_s / 3600
        num_nodes = max(num_nodes, -(-job.num_gpus // gpus_per_node))
        demand[job.team] = (gpu_hours, num_nodes)
    return demand
