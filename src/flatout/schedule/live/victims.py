"""Decide whether a job fits on free GPUs, and which running jobs are the cheapest to requeue for it.

GPUs and CPUs of each node, partition, features and named nodes are considered. Memory, licences and other limits of the
scheduler are not, so a caller must not requeue more jobs for a job that still waits although it should fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from flatout.schedule.live.view import ClusterView, JobView, NodeView


class FreeCapacity:
    """Free GPUs and CPUs on the nodes of a view; `take` and `give` account for decisions made since."""

    def __init__(self, view: ClusterView) -> None:
        self.gpus = view.free_gpus()
        self.cpus = view.free_cpus()
        self._nodes = {node.name: node for node in view.nodes}
        self._allowed: dict[tuple[object, ...], list[str] | None] = {}
        self._too_large: set[tuple[object, ...]] = set()  # kinds of jobs that did not fit; `give` clears it

    def nodes_for(self, job: JobView) -> list[str] | None:
        """Return the nodes on which a job can run; None if unknown."""
        kind = _kind(job)
        if kind not in self._allowed:
            self._allowed[kind] = self._nodes_for(job)
        return self._allowed[kind]

    def _nodes_for(self, job: JobView) -> list[str] | None:
        if set(job.required_features) & set("|[]()*!"):
            return None
        features = {each for each in job.required_features.replace(",", "&").split("&") if each}
        allowed = [name for name in self.gpus if _may_run(job, self._nodes[name], features)]
        return allowed if set(job.required_nodes) <= set(allowed) else []

    def placement(self, job: JobView) -> dict[str, int] | None:
        """Return the GPUs by node with which the job fits; None if it does not fit or that is unknown."""
        kind = (*_kind(job), job.gpus_per_node, job.num_gpus, job.num_nodes, job.cpus)
        if kind in self._too_large:
            return None
        placement = self._placement(job)
        if placement is None:
            self._too_large.add(kind)
        return placement

    def _placement(self, job: JobView) -> dict[str, int] | None:
        nodes = self.nodes_for(job)
        if nodes is None:
            return None
        if job.gpus_per_node is None and job.num_gpus:
            return self._anywhere(job, nodes)
        wanted = job.gpus_per_node or 0
        fitting = [name for name in nodes if self.gpus[name] >= wanted and self._has_cpus(job, name)]
        fitting.sort(key=lambda name: (name not in job.required_nodes, self.gpus[name], name))
        if len(fitting) < job.num_nodes or not set(job.required_nodes) <= set(fitting[: job.num_nodes]):
            return None
        return dict.fromkeys(fitting[: job.num_nodes], wanted)

    def take(self, placement: Mapping[str, int]) -> None:
        for name, number in placement.items():
            self.gpus[name] -= number

    def give(self, job: JobView, *, sign: int = 1) -> None:
        self._too_large.clear()
        for name, number in job.gpus_by_node.items():
            if name in self.gpus:
                self.gpus[name] += sign * number
        for name, number in job.cpus_by_node.items():
            if name in self.cpus:
                self.cpus[name] += sign * number

    def _has_cpus(self, job: JobView, name: str) -> bool:
        wanted = -(-job.cpus // max(job.num_nodes, 1)) if job.cpus else 0
        return name not in self.cpus or self.cpus[name] >= wanted

    def _anywhere(self, job: JobView, nodes: Iterable[str]) -> dict[str, int] | None:
        left, placement = job.num_gpus, dict[str, int]()
        for name in sorted(nodes, key=lambda name: (-self.gpus[name], name)):
            if left <= 0:
                break
            if self.gpus[name] > 0:
                placement[name] = min(self.gpus[name], left)
                left -= placement[name]
        return placement if left <= 0 else None


def victims_for(
    job: JobView, room: FreeCapacity, candidates: Sequence[JobView], cost: Callable[[JobView], float]
) -> list[JobView] | None:
    """Return cheap jobs to requeue so that `job` fits, all of them needed; None if it cannot be made to fit.

    Nodes are cleared one after the other, the cheapest first, each at the least cost; a victim chosen for one
    node costs nothing on the next. This sometimes chooses a few more victims than necessary.
    """
    nodes = room.nodes_for(job)
    if not nodes or not job.num_gpus:
        return None
    on_node: dict[str, list[JobView]] = {name: [] for name in nodes}
    for candidate in candidates:
        for name in candidate.gpus_by_node:
            if name in on_node:
                on_node[name].append(candidate)
    chosen: dict[str, JobView] = {}
    if job.gpus_per_node is None:
        _clear_anywhere(job, room, on_node, cost, chosen)
    else:
        _clear_nodes(job, room, on_node, cost, chosen)
    for victim in chosen.values():
        room.give(victim)
    try:
        if room.placement(job) is None:
            return None
        for victim in sorted(chosen.values(), key=cost, reverse=True):
            room.give(victim, sign=-1)
            if room.placement(job) is None:
                room.give(victim)
            else:
                del chosen[victim.id]
    finally:
        for victim in chosen.values():
            room.give(victim, sign=-1)
    return list(chosen.values())


def _clear_nodes(
    job: JobView,
    room: FreeCapacity,
    on_node: Mapping[str, Sequence[JobView]],
    cost: Callable[[JobView], float],
    chosen: dict[str, JobView],
) -> None:
    assert job.gpus_per_node is not None
    left = set(on_node)
    for _ in range(job.num_nodes):
        best: tuple[tuple[bool, float, str], list[JobView]] | None = None
        for name in left:
            freed = sum(victim.gpus_by_node.get(name, 0) for victim in chosen.values())
            others = [each for each in on_node[name] if each.id not in chosen]
            victims = _cheapest(name, job.gpus_per_node - room.gpus[name] - freed, others, cost)
            if victims is None:
                continue
            key = (name not in job.required_nodes, sum(cost(victim) for victim in victims), name)
            if best is None or key < best[0]:
                best = key, victims
        if best is None:
            return
        (_, _, cleared_node), victims = best
        left.discard(cleared_node)
        chosen.update({victim.id: victim for victim in victims})


def _clear_anywhere(
    job: JobView,
    room: FreeCapacity,
    on_node: Mapping[str, Sequence[JobView]],
    cost: Callable[[JobView], float],
    chosen: dict[str, JobView],
) -> None:
    missing = job.num_gpus - sum(room.gpus[name] for name in on_node)
    candidates = {each.id: each for jobs in on_node.values() for each in jobs}.values()
    for each in sorted(candidates, key=lambda each: (cost(each) / each.held_gpus, each.id)):
        if missing <= 0:
            return
        chosen[each.id] = each
        missing -= sum(number for name, number in each.gpus_by_node.items() if name in on_node)


def _cheapest(
    name: str, missing: int, jobs: Sequence[JobView], cost: Callable[[JobView], float]
) -> list[JobView] | None:
    """Return the cheapest set of `jobs` that holds `missing` GPUs of the node: a small knapsack, solved exactly."""
    if missing <= 0:
        return []
    best: list[tuple[float, list[JobView]] | None] = [(0.0, []), *([None] * missing)]
    for each in jobs:
        gives, price = each.gpus_by_node[name], cost(each)
        for have in range(missing - 1, -1, -1):
            before = best[have]
            if before is None:
                continue
            at = min(have + gives, missing)
            now = best[at]
            if now is None or before[0] + price < now[0]:
                best[at] = before[0] + price, [*before[1], each]
    cheapest = best[missing]
    return None if cheapest is None else cheapest[1]


def _kind(job: JobView) -> tuple[object, ...]:
    """Return a key that is equal for jobs that can run on the same nodes."""
    is_in_reservation = bool(job.reservation)
    return job.partition, job.required_features, job.required_nodes, job.excluded_nodes, is_in_reservation


def _may_run(job: JobView, node: NodeView, features: set[str]) -> bool:
    partitions = set(job.partition.split(",")) & set(node.partitions)
    is_open = not node.is_reserved or bool(job.reservation)
    return bool(partitions) and is_open and node.name not in job.excluded_nodes and features <= set(node.features)
