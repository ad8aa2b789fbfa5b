"""Decide the actions to take now, with reasons, from a cluster view, earlier actions and the operator's settings.

`decide` is pure. It never touches a job that the operator protects or excludes, requeues only jobs that allow it, and
never drains a node that is already drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from flatout.schedule.live.actions import ABSENT, FREE, HELD, IN_SERVICE, PRESENT, REQUEUED, Action, NodeReservation
from flatout.schedule.live.actions import running_since as since
from flatout.schedule.live.controller_state import ControllerState
from flatout.schedule.live.orders import Order
from flatout.schedule.live.phrases import duration, gpus
from flatout.schedule.live.priorities import new_priorities
from flatout.schedule.live.selectors import PROTECTED_MARK, Selector, is_any
from flatout.schedule.live.victims import FreeCapacity, victims_for
from flatout.schedule.live.view import FLATOUT_MARK, ClusterView, JobView, NodeFailure

RESERVATION_MARK = "flatout_"
_SAME_FAILURE_S = 600.0
# Any other reason is a limit, a licence or a requested node, for which free GPUs would not help.
_WAITS_FOR_ROOM = ("", "Resources", "Priority")
_UNLIMITED_MIN = 365 * 24 * 60
_IDLE_RESTART_COST = 0.1  # share of the usual cost of a restart: nobody is waiting for the result of an idle job


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings. `order_name` appears in reasons; without `order` the scheduler keeps its own order."""

    order_name: str = "priority"
    order: Order | None = None
    order_by: Literal["priority", "nice"] = "priority"
    urgent: tuple[Selector, ...] = ()
    urgent_partition: str | None = None
    urgent_qos: str | None = None
    protected: tuple[Selector, ...] = ()
    only: tuple[Selector, ...] = ()
    reserves_nodes: bool = False
    reclaims_idle: bool = False
    idle_partition: str | None = None
    idle_qos: str | None = None
    restart_cost_s: float = 300.0
    max_preemptions: int = 3
    max_hold_s: float = 900.0
    again_after_s: float = 1800.0
    drain_failures: float = 3.0
    drain_window_s: float = 86400.0
    max_drained_share: float = 0.1
    max_ordered: int = 500


def decide(view: ClusterView, memory: ControllerState, settings: ControllerSettings) -> list[Action]:
    """Return the actions in order of execution: reverts, freeing GPUs, nodes, priorities."""
    return list(_decide(view, memory, settings))


def _decide(view: ClusterView, memory: ControllerState, settings: ControllerSettings) -> Iterator[Action]:
    may_touch = _permission(settings)
    waiting = _in_order(view, settings, may_touch)
    is_urgent = {job.id for job in waiting if is_any(job, settings.urgent)}
    yield from _reverts(view, memory, settings)
    yield from _moves(waiting, is_urgent, settings)
    order = list(_ordered(view, waiting, is_urgent, settings))
    yield from (action for action in order if action.target in is_urgent)
    yield from _requeues(view, memory, settings, waiting, is_urgent, may_touch)
    yield from _drains(view, memory, settings)
    yield from (action for action in order if action.target not in is_urgent)


def _permission(settings: ControllerSettings) -> Callable[[JobView], bool]:
    def may_touch(job: JobView) -> bool:
        is_protected = PROTECTED_MARK in job.comment or is_any(job, settings.protected)
        return not is_protected and (not settings.only or is_any(job, settings.only))

    return may_touch


def _in_order(view: ClusterView, settings: ControllerSettings, may_touch: Callable[[JobView], bool]) -> list[JobView]:
    """Return the jobs that could start: first the urgent ones, then the others, each in the policy's order."""
    waiting = [job for job in view.jobs if job.is_waiting and may_touch(job) and job.priority]

    def key(job: JobView) -> tuple[object, ...]:
        rank = (-float(job.priority or 0),) if settings.order is None else settings.order(job, view)
        return (not is_any(job, settings.urgent), rank, _number(job.id))

    return sorted(waiting, key=key)


def _number(job_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in job_id.split("_") if part.isdecimal())


def _reverts(view: ClusterView, memory: ControllerState, settings: ControllerSettings) -> Iterator[Action]:
    for job_id, entry in memory.holds.items():
        job, cause = view.job(job_id), view.job(entry.action.cause)
        if job is None or not job.is_held:
            continue
        held_s = view.now_unix_s - entry.unix_s
        if cause is None or cause.state != "pending":
            end = "has started" if cause is not None else "is gone"
            why = f"job {entry.action.cause}, for which it was requeued, {end}"
        elif held_s > settings.max_hold_s:
            why = f"it was held for {duration(held_s)}, and job {cause.id} still waits ({cause.reason})"
        else:
            continue
        yield Action(kind="release", target=job_id, previous=HELD, value=FREE, reason=why)
    for name, entry in memory.reservations.items():
        job = view.job(entry.action.cause)
        if name in view.reservations and (job is None or job.state == "ended"):
            why = f"job {entry.action.cause} has ended"
            yield Action(kind="unreserve", target=name, previous=PRESENT, value=ABSENT, reason=why)


def _moves(waiting: Iterable[JobView], urgent: set[str], settings: ControllerSettings) -> Iterator[Action]:
    for job in waiting:
        if job.id not in urgent:
            continue
        if settings.urgent_partition and job.partition != settings.urgent_partition:
            yield Action(
                kind="partition",
                target=job.id,
                previous=job.partition,
                value=settings.urgent_partition,
                reason="it is urgent",
            )
        if settings.urgent_qos and job.qos != settings.urgent_qos:
            yield Action(kind="qos", target=job.id, previous=job.qos, value=settings.urgent_qos, reason="it is urgent")


def _ordered(
    view: ClusterView, waiting: Sequence[JobView], urgent: set[str], settings: ControllerSettings
) -> Iterator[Action]:
    """Yield changes of priority. Without a policy, only urgent jobs move: the scheduler has ordered the others."""
    if settings.order is None and not urgent:
        return
    first = waiting[: settings.max_ordered]
    current = {job.id: job.priority or 0 for job in first}
    new = new_priorities([job.id for job in first], current)
    for rank, job in enumerate(first, 1):
        if job.id not in new:
            continue
        why = "it is urgent" if job.id in urgent else f"{settings.order_name}: number {rank} of {len(waiting)} waiting"
        if settings.order_by == "nice":
            # With the multifactor plugin, priority = factors - nice, so the factors continue to age.
            before, after = str(job.nice), str(job.nice + current[job.id] - new[job.id])
        else:
            before, after = str(job.priority), str(new[job.id])
        yield Action(kind=settings.order_by, target=job.id, previous=before, value=after, reason=why)


def _requeues(
    view: ClusterView,
    memory: ControllerState,
    settings: ControllerSettings,
    waiting: Sequence[JobView],
    urgent: set[str],
    may_touch: Callable[[JobView], bool],
) -> Iterator[Action]:
    """Yield requeues that free GPUs for waiting jobs: idle jobs for any waiting job, busy jobs only for urgent ones."""
    room = _Room(view, memory, settings, may_touch)
    for job in waiting:
        if job.reason not in _WAITS_FOR_ROOM or room.seats(job) or _was_given_room(job, view, memory, settings):
            continue
        is_urgent = job.id in urgent
        victims = room.victims_for(job, is_urgent=is_urgent)
        if not victims:
            continue
        placement = room.seat_in_place_of(victims, job)
        if settings.reserves_nodes and is_urgent:
            yield from _reserved(job, sorted(placement))
        for victim in victims:
            yield from _requeued(victim, job, view, settings, room.idle)


class _Room:
    """What is free for waiting jobs, and the running jobs that may be requeued to free more."""

    def __init__(
        self,
        view: ClusterView,
        memory: ControllerState,
        settings: ControllerSettings,
        may_touch: Callable[[JobView], bool],
    ) -> None:
        self.idle = set(view.idle_for_s) if settings.reclaims_idle else set()
        self._now_unix_s = view.now_unix_s
        self._restart_cost_s = settings.restart_cost_s
        self._free = FreeCapacity(view)
        self._candidates = {job.id: job for job in view.jobs if may_touch(job) and _may_preempt(job, memory, settings)}

    def seats(self, job: JobView) -> bool:
        """Whether the job fits into what is free; if so, it takes its part."""
        placement = self._free.placement(job)
        if placement is not None:
            self._free.take(placement)
        return placement is not None

    def victims_for(self, job: JobView, *, is_urgent: bool) -> Sequence[JobView]:
        """Return the jobs to requeue: idle jobs, or for an urgent job any; none if they would free too little."""
        # Idle jobs in a fixed order: of two that cost the same, the first is chosen.
        allowed = list(self._candidates) if is_urgent else sorted(self.idle.intersection(self._candidates))
        if not allowed:
            return ()
        return victims_for(job, self._free, [self._candidates[job_id] for job_id in allowed], self._cost) or ()

    def seat_in_place_of(self, victims: Sequence[JobView], job: JobView) -> dict[str, int]:
        """Give the victims' nodes back, seat the job, and return its placement."""
        for victim in victims:
            del self._candidates[victim.id]
            self._free.give(victim)
        placement = self._free.placement(job)
        assert placement is not None
        self._free.take(placement)
        return placement

    def _cost(self, job: JobView) -> float:
        """Return the GPU-seconds that requeuing the job loses."""
        restart_gpu_s = self._restart_cost_s * job.held_gpus
        if job.id in self.idle:
            return restart_gpu_s * _IDLE_RESTART_COST
        return job.lost_gpu_s(self._now_unix_s) + restart_gpu_s


def _was_given_room(job: JobView, view: ClusterView, memory: ControllerState, settings: ControllerSettings) -> bool:
    """Whether jobs were requeued for it a short time ago.

    Then it waits for something that is not modelled, or the scheduler has not reacted yet.
    """
    made_room_unix_s = memory.made_room_unix_s.get(job.id)
    return made_room_unix_s is not None and view.now_unix_s - made_room_unix_s < settings.again_after_s


def _may_preempt(job: JobView, memory: ControllerState, settings: ControllerSettings) -> bool:
    """Whether a requeue of the job is safe, frees GPUs and does not come too often."""
    if job.state != "running" or not job.may_requeue or job.is_composite:
        return False
    if is_any(job, settings.urgent):
        return False
    return job.held_gpus > 0 and memory.num_preemptions.get(job.id, 0) < settings.max_preemptions


def _reserved(job: JobView, nodes: Sequence[str]) -> Iterator[Action]:
    name = f"{RESERVATION_MARK}{job.id}"
    minutes = _UNLIMITED_MIN if job.time_limit_s is None else int(job.time_limit_s / 60) + 60
    yield Action(
        kind="reserve",
        target=name,
        previous=ABSENT,
        value=PRESENT,
        reason=f"only urgent job {job.id} can start there",
        group=job.id,
        cause=job.id,
        reservation=NodeReservation(user=job.user, nodes=tuple(nodes), duration_min=minutes),
    )
    yield Action(
        kind="job-reservation",
        target=job.id,
        previous=ABSENT,
        value=name,
        reason="it is urgent",
        group=job.id,
    )


def _requeued(
    victim: JobView, job: JobView, view: ClusterView, settings: ControllerSettings, idle: set[str]
) -> Iterator[Action]:
    """Yield the requeue of `victim` for `job`; a job whose GPUs were idle also moves to where idle jobs belong."""
    held, needed = gpus(victim.held_gpus), gpus(job.num_gpus)
    is_idle = victim.id in idle
    if is_idle:
        idle_for = duration(view.idle_for_s[victim.id])
        why = f"its {held} were idle for {idle_for}, and job {job.id} waits for {needed}"
        attained_gpu_s = 0.0
    else:
        ran_s = victim.ran_s(view.now_unix_s)
        lost = duration(victim.lost_gpu_s(view.now_unix_s) / victim.held_gpus)
        why = f"urgent job {job.id} needs {needed}; it ran {duration(ran_s)} on {held} and loses {lost} of it"
        attained_gpu_s = ran_s * victim.held_gpus
    yield Action(
        kind="requeue-hold",
        target=victim.id,
        previous=since(victim),
        value=REQUEUED,
        reason=why,
        group=job.id,
        cause=job.id,
        attained_gpu_s=attained_gpu_s,
        submit_unix_s=victim.submit_unix_s,
    )
    if not is_idle:
        return
    demotions: tuple[tuple[Literal["partition", "qos"], str, str | None], ...] = (
        ("partition", victim.partition, settings.idle_partition),
        ("qos", victim.qos, settings.idle_qos),
    )
    for kind, before, after in demotions:
        if after and after != before:
            yield Action(
                kind=kind, target=victim.id, previous=before, value=after, reason="its GPUs were idle", group=job.id
            )


def _failures_of(name: str, memory: ControllerState, view: ClusterView) -> list[NodeFailure]:
    """Return the failures of a node; a failure that was both observed and in the accounting counts once."""
    observed = [failure for failure in memory.failures if failure.node == name]

    def is_new(failure: NodeFailure) -> bool:
        return all(abs(failure.unix_s - other.unix_s) > _SAME_FAILURE_S for other in observed)

    accounted = [failure for failure in view.failures if failure.node == name]
    return observed + [failure for failure in accounted if is_new(failure)]


def _drains(view: ClusterView, memory: ControllerState, settings: ControllerSettings) -> Iterator[Action]:
    num_drained = sum(node.is_drained and node.reason.startswith(FLATOUT_MARK) for node in view.nodes)
    most = max(int(len(view.nodes) * settings.max_drained_share), 1)
    for node in view.nodes:
        if node.is_drained:
            continue
        after_unix_s = max(memory.drained_unix_s.get(node.name, 0.0), view.now_unix_s - settings.drain_window_s)
        failures = _failures_of(node.name, memory, view)
        number = sum(each.weight for each in failures if after_unix_s < each.unix_s <= view.now_unix_s)
        if number < settings.drain_failures - 1e-9:
            continue
        if num_drained >= most:
            return  # if many nodes fail, the cause is elsewhere, and a human must look at it
        num_drained += 1
        why = f"{FLATOUT_MARK}{number:.3g} failures in {duration(settings.drain_window_s)}"
        yield Action(kind="drain", target=node.name, previous=IN_SERVICE, value=why, reason=why)
