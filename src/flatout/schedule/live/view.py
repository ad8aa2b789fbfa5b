"""The state of a cluster at one moment, as seen by a controller: its jobs, its nodes, and the jobs with idle GPUs.

Unknown values are None. Times are Unix seconds of the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

JobState = Literal["pending", "running", "suspended", "completing", "ended"]
FLATOUT_MARK = "flatout: "


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or the tasks of an array that have not started.

    `gpus_by_node` and `gpu_indices` are allocated; `num_gpus`, `num_nodes` and `gpus_per_node` are requested.
    """

    id: str
    state: JobState
    user: str
    partition: str
    submit_unix_s: float
    name: str = ""
    account: str = ""
    qos: str = ""
    comment: str = ""
    reason: str = ""
    priority: int | None = None
    nice: int = 0
    num_nodes: int = 1
    num_gpus: int = 0
    gpus_per_node: int | None = None
    cpus: int | None = None
    eligible_unix_s: float | None = None
    start_unix_s: float | None = None
    time_limit_s: float | None = None
    restarts: int = 0
    may_requeue: bool = False
    is_held: bool = False
    is_dependent: bool = False
    reservation: str = ""
    is_composite: bool = False  # a heterogeneous job: its parts are requeued together or not at all
    required_features: str = ""
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    gpus_by_node: Mapping[str, int] = {}
    gpu_indices: Mapping[str, tuple[int, ...]] = {}
    cpus_by_node: Mapping[str, int] = {}
    last_checkpoint_unix_s: float | None = None

    def ran_s(self, now_unix_s: float) -> float:
        return max(now_unix_s - self.start_unix_s, 0.0) if self.start_unix_s is not None else 0.0

    def lost_gpu_s(self, now_unix_s: float) -> float:
        """Return the GPU-seconds of work that would be repeated if the job were requeued now."""
        saved = self.last_checkpoint_unix_s
        if saved is not None and self.start_unix_s is not None and saved > self.start_unix_s:
            return max(now_unix_s - saved, 0.0) * self.held_gpus
        return self.ran_s(now_unix_s) * self.held_gpus

    @property
    def held_gpus(self) -> int:
        return sum(self.gpus_by_node.values())

    @property
    def is_waiting(self) -> bool:
        """Whether the job could start as soon as enough GPUs are free."""
        return self.state == "pending" and not (self.is_held or self.is_dependent)


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `is_usable`: new jobs can start on it. If Flatout drained it, `reason` begins with `flatout: `."""

    name: str
    num_gpus: int
    num_cpus: int | None = None
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    is_usable: bool = True
    is_down: bool = False
    is_drained: bool = False
    is_reserved: bool = False
    reason: str = ""


class UtilizationSample(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization (0 to 1) of one GPU (by node and index) or of all GPUs of one job at one moment."""

    unix_s: float
    busy_share: float
    node: str | None = None
    gpu: int | None = None
    job: str | None = None


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A node failure, or a share of one."""

    node: str
    unix_s: float
    weight: float = 1.0


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster, read at `now_unix_s`. `idle_for_s` has the idle seconds of jobs whose GPUs were all idle."""

    now_unix_s: float
    jobs: tuple[JobView, ...]
    nodes: tuple[NodeView, ...]
    idle_for_s: Mapping[str, float] = {}
    unseen_jobs: tuple[str, ...] = ()  # running jobs whose GPUs have no samples
    durations_s: Mapping[str, float] = {}  # predicted, by job
    attained_gpu_s: Mapping[str, float] = {}  # in runs before the current one, by job
    failures: tuple[NodeFailure, ...] = ()
    reservations: tuple[str, ...] = ()

    def job(self, job_id: str) -> JobView | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def node(self, name: str) -> NodeView | None:
        return next((node for node in self.nodes if node.name == name), None)

    def free_gpus(self) -> dict[str, int]:
        """Return the free GPUs of the usable nodes; those of a job that is ending count as free."""
        free = {node.name: node.num_gpus for node in self.nodes if node.is_usable}
        for job in self.jobs:
            if job.state in ("running", "suspended"):
                _take(free, job.gpus_by_node)
        return free

    def free_cpus(self) -> dict[str, int]:
        """Return the free CPUs of the usable nodes whose number of CPUs is known."""
        free = {node.name: node.num_cpus for node in self.nodes if node.is_usable and node.num_cpus is not None}
        for job in self.jobs:
            if job.state in ("running", "suspended"):
                _take(free, job.cpus_by_node)
        return free


def _take(free: dict[str, int], held: Mapping[str, int]) -> None:
    for name, number in held.items():
        if name in free:
            free[name] = max(free[name] - number, 0)
