"""A queue of gang jobs for a Ray cluster, which has no queue: placement groups by priority, requeue and release.

In: functions with the number of nodes and GPUs that they need. A job is a placement group with one bundle per node, and
one task in each, called as `function(TaskContext(...), *args)`. Out: a `Scheduler`, like Slurm's for a controller; so
`decide` frees GPUs for urgent jobs and reclaims idle ones, with the same log, limit and undo.

When a job is requeued, its tasks are killed, and later it starts again with `TaskContext.restarts` one higher: the job
must resume from its own checkpoint. An exception of the function ends the job; the death of a node or worker requeues
it. The queue exists only in the process that created it. Partitions, QOS and reservations, which only Slurm has, are
refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from flatout.schedule.live.actions import Action
from flatout.schedule.live.slurm import RefusedError
from flatout.schedule.live.victims import FreeCapacity
from flatout.schedule.live.view import ClusterView, JobView, NodeFailure, NodeView

State = Literal["pending", "running", "done", "failed"]
FIRST_PRIORITY = 1_000_000
_PLACE_TIMEOUT_S = 10.0
_PARTITION = "ray"


class TaskContext(msgspec.Struct, frozen=True, kw_only=True):
    """The first argument of a job's task."""

    job: str
    rank: int
    num_nodes: int
    restarts: int


class RayJob(msgspec.Struct, kw_only=True):
    """A job of the queue. When done, `results` has its tasks' return values, by rank; `error` is why it failed."""

    id: str
    function: Callable[..., object]
    args: tuple[object, ...]
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    priority: int
    user: str
    comment: str
    may_requeue: bool
    submit_unix_s: float
    state: State = "pending"
    is_held: bool = False
    restarts: int = 0
    start_unix_s: float | None = None
    group: Any = None
    tasks: tuple[Any, ...] = ()
    on_nodes: tuple[str, ...] = ()
    results: tuple[object, ...] = ()
    error: str = ""


class RayQueue:
    """Queue for the cluster that `ray.init` has joined. Nothing happens between two calls of `step`.

    A step reaps ended jobs and starts waiting ones, the highest priority first; no job passes one that does not fit,
    so no job starves.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, RayJob] = {}
        self._failures: list[NodeFailure] = []
        self._alive: set[str] = set()
        self._killed: list[Any] = []  # killed tasks whose errors have not been retrieved

    def submit(
        self,
        function: Callable[..., object],
        *args: object,
        nodes: int = 1,
        gpus_per_node: int = 1,
        cpus_per_node: int = 1,
        priority: int | None = None,
        user: str = "",
        comment: str = "",
        may_requeue: bool = True,
    ) -> RayJob:
        """Add a job; without a priority it comes after all that were submitted before."""
        number = len(self.jobs) + 1
        job = RayJob(
            id=str(number),
            function=function,
            args=args,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            cpus_per_node=cpus_per_node,
            priority=FIRST_PRIORITY - number if priority is None else priority,
            user=user,
            comment=comment,
            may_requeue=may_requeue,
            submit_unix_s=time.time(),
        )
        self.jobs[job.id] = job
        return job

    def step(self) -> None:
        self._forget_killed()
        self.read()
        for job in self.jobs.values():
            if job.state == "running" and set(job.on_nodes) <= self._alive:
                self._reap(job)
            elif job.state == "running":  # the errors of its tasks can arrive much later
                self._lose(job, "its node died")
        view = self.read()
        room = FreeCapacity(view)
        waiting = [job for job in view.jobs if job.is_waiting]
        for seen in sorted(waiting, key=lambda job: (-(job.priority or 0), int(job.id))):
            placement = room.placement(seen)
            if placement is None or not self._start(self.jobs[seen.id]):
                return
            room.take(placement)

    def cluster(self) -> str:
        import ray

        return f"ray-{ray.get_runtime_context().gcs_address}"

    def read(self) -> ClusterView:
        """Return the view of the cluster.

        Nodes are identified by Ray's node IDs; a node that disappears counts as failed.
        """
        import ray

        nodes, alive = [], set[str]()
        for each in ray.nodes():
            if each["Alive"]:
                alive.add(each["NodeID"])
                nodes.append(_node(each["NodeID"], each["Resources"]))
        now = time.time()
        self._failures.extend(NodeFailure(node=name, unix_s=now) for name in sorted(self._alive - alive))
        self._alive = alive
        jobs = tuple(_view(job) for job in self.jobs.values())
        return ClusterView(now_unix_s=now, jobs=jobs, nodes=tuple(nodes), failures=tuple(self._failures))

    def job(self, job_id: str) -> JobView | None:
        found = self.jobs.get(job_id)
        return None if found is None else _view(found)

    def perform(self, action: Action) -> None:
        """Perform a hold, a release, a change of priority or a requeue; refuse everything else."""
        job = self.jobs.get(action.target)
        match action.kind:
            case "priority" if job is not None:
                job.priority = int(action.value)
            case "hold" if job is not None and job.state == "pending":
                job.is_held = True
            case "release" if job is not None and job.state == "pending":
                job.is_held = False
            case "requeue" | "requeue-hold" if job is not None and job.state == "running":
                self._requeue(job)
                job.is_held = action.kind == "requeue-hold"
            case _:
                raise RefusedError(f"Ray has no `{action.kind}` for {action.target}")

    def cancel(self, job_id: str) -> None:
        """End a job, whether it runs or waits."""
        job = self.jobs[job_id]
        if job.state == "running":
            self._end(job, "failed", error="cancelled")
        elif job.state == "pending":
            job.state, job.error = "failed", "cancelled"

    def close(self) -> None:
        """End the running jobs."""
        for job in self.jobs.values():
            if job.state == "running":
                self._requeue(job)

    def _start(self, job: RayJob) -> bool:
        """Start all tasks of a job, or none; return False if Ray cannot place them now."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"GPU": float(job.gpus_per_node), "CPU": float(job.cpus_per_node)}
        group = placement_group([bundle] * job.nodes, strategy="STRICT_SPREAD")
        if not group.wait(_PLACE_TIMEOUT_S):
            remove_placement_group(group)
            return False
        by_bundle: Mapping[int, str] = placement_group_table(group)["bundles_to_node_id"]
        job.on_nodes = tuple(by_bundle[rank] for rank in range(job.nodes))
        job.group, job.state, job.start_unix_s = group, "running", time.time()
        job.tasks = tuple(
            ray.remote(
                num_gpus=job.gpus_per_node,
                num_cpus=job.cpus_per_node,
                max_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
            )(job.function).remote(
                TaskContext(job=job.id, rank=rank, num_nodes=job.nodes, restarts=job.restarts), *job.args
            )
            for rank in range(job.nodes)
        )
        return True

    def _reap(self, job: RayJob) -> None:
        """End a job if one of its tasks failed: a gang runs completely or not at all."""
        import ray

        ended, running = ray.wait(list(job.tasks), num_returns=len(job.tasks), timeout=0)
        try:
            results = {task: ray.get(task) for task in ended}
        except ray.exceptions.RayTaskError as error:
            self._end(job, "failed", error=str(error.cause))
            return
        except ray.exceptions.RayError as error:
            self._lose(job, f"{type(error).__name__}: its node or worker died")
            return
        if not running:
            job.results = tuple(results[task] for task in job.tasks)
            self._end(job, "done")

    def _forget_killed(self) -> None:
        """Retrieve the errors of killed tasks, because Ray complains about errors that are never retrieved."""
        import ray

        if self._killed:
            ended, self._killed = ray.wait(self._killed, num_returns=len(self._killed), timeout=0)
            for task in ended:
                with suppress(ray.exceptions.RayError):
                    ray.get(task)

    def _lose(self, job: RayJob, why: str) -> None:
        if job.may_requeue:
            self._requeue(job)
        else:
            self._end(job, "failed", error=why)

    def _requeue(self, job: RayJob) -> None:
        self._end(job, "pending")
        job.restarts += 1

    def _end(self, job: RayJob, state: State, *, error: str = "") -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(job.group)  # kills the tasks in it
        self._killed.extend(job.tasks)
        job.state, job.error = state, error
        job.group, job.tasks, job.on_nodes = None, (), ()


def _node(name: str, resources: Mapping[str, float]) -> NodeView:
    return NodeView(
        name=name,
        num_gpus=int(resources.get("GPU", 0)),
        num_cpus=int(resources.get("CPU", 0)),
        partitions=(_PARTITION,),
    )


def _view(job: RayJob) -> JobView:
    return JobView(
        id=job.id,
        state=job.state if job.state in ("pending", "running") else "ended",
        user=job.user,
        partition=_PARTITION,
        comment=job.comment,
        submit_unix_s=job.submit_unix_s,
        priority=0 if job.is_held else job.priority,
        num_nodes=job.nodes,
        num_gpus=job.nodes * job.gpus_per_node,
        gpus_per_node=job.gpus_per_node,
        cpus=job.nodes * job.cpus_per_node,
        start_unix_s=job.start_unix_s if job.state == "running" else None,
        restarts=job.restarts,
        may_requeue=job.may_requeue,
        is_held=job.is_held,
        reason="Resources" if job.state == "pending" else "",
        gpus_by_node=dict.fromkeys(job.on_nodes, job.gpus_per_node),
        cpus_by_node=dict.fromkeys(job.on_nodes, job.cpus_per_node),
    )
