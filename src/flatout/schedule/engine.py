"""The simulator: it handles events in chronological order, lets a policy place jobs, and logs every GPU-second.

In: jobs in order of submission, a cluster, a policy. Out: a `SimulationResult`: the log of segments (a job on its GPUs
from one time to another), and when each job ended. All measures are computed from the log afterwards, and tests check
the log alone.

The time of a segment is divided into `useful` work; `overhead`, from receiving GPUs again to the first new step; `lost`
work, which was done between the last checkpoint and a stop; and `idle` time, in which GPUs are held but not used.

Events of equal time are handled in a fixed order (ends, failures, repairs, changes of phase, submissions; then by job),
and nothing iterates over a set, so a run depends only on its arguments.

A job with a data set prefers nodes that hold it; the time to copy it to others is overhead, whatever number of nodes.

It does not model the network between jobs, the time of the scheduler's own decisions, or jobs that depend on others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from flatout.errors import InputError
from flatout.schedule.cluster import Cluster
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.phases import idle_between, is_idle, phase_at
from flatout.schedule.pool import WHOLE, Placement, Pool, mask_of, nodes_of
from flatout.schedule.requirements import NodeMatcher
from flatout.schedule.result import Segment, SimulationResult

FUTURE, WAITING, RUNNING, AWAY, DONE = range(5)  # AWAY: its GPUs were reclaimed while idle, and it has no work yet
_END, _FAIL, _REPAIR, _PHASE, _BACK, _WAKE = range(6)
DAY = 86_400.0
_MAX_FUTILE_STARTS = 10_000  # limit on failed starts of one job without newly saved work
_DECISIONS_PER_REPORT = 4096  # a power of two


class FailureModel(msgspec.Struct, frozen=True, kw_only=True):
    """A Poisson process of node failures, with the time to repair a node."""

    per_1000_node_days: float
    repair_s: float = 4 * 3600.0
    seed: int = 0


class Shape(NamedTuple):
    """Everything that decides where a job fits; a pool treats jobs with equal shapes alike."""

    gpus: int
    milli: int  # thousandths of a GPU; 1000 for whole GPUs
    allowed: int  # mask of nodes
    team: str  # empty unless the policy gives each team its own nodes


class SimulatedPolicy(Protocol):
    """The methods that a simulation calls on its policy; `flatout.schedule.policy.Policy` documents each of them."""

    name: ClassVar[str]
    has_own_nodes: ClassVar[bool]

    def attach(self, sim: Simulation) -> None: ...
    def pool(self, cluster: Cluster) -> Pool: ...
    def own_nodes(self, team: str, cluster: Cluster) -> int: ...
    def submitted(self, job: int) -> None: ...
    def stopped(self, job: int) -> None: ...
    def ended(self, job: int) -> None: ...
    def phase_changed(self, job: int) -> None: ...
    def decide(self) -> None: ...
    def notes(self) -> tuple[str, ...]: ...


class Simulation:
    """One simulation. A policy reads its public attributes and acts through these methods:

    `start`, `start_at`, `preempt`, `resize`, `reclaim` and `wake`.

    A policy must not read `work_left_s`, `jobs[...].duration_s`, `finish_s` or `phases` unless it is declared an
    oracle. Lists are indexed by job.
    """

    def __init__(
        self,
        jobs: Sequence[ClusterJob],
        cluster: Cluster,
        policy: SimulatedPolicy,
        *,
        assumptions: Assumptions | None = None,
        failures: FailureModel | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        count = len(jobs)
        assumed = assumptions or Assumptions()
        self.jobs, self.cluster, self.policy = jobs, cluster, policy
        self.now = 0.0
        self.pool = policy.pool(cluster)

        # The request of each job.
        self.submit_s = [job.submit_s for job in jobs]
        self.requested_gpus = [job.num_gpus for job in jobs]
        self.restart_s = [_stated(job.restart_s, assumed.restart_s) for job in jobs]
        self.checkpoint_s = [_stated(job.checkpoint_s, assumed.checkpoint_s) for job in jobs]
        self._has_phases = [bool(job.phases) for job in jobs]
        self._has_speeds = [bool(job.type_speeds) or job.min_gpus is not None for job in jobs]
        self.shapes: list[Shape] = []
        self.shape = self._shape_of_each_job()

        # The state of each job.
        self.status = [FUTURE] * count
        self.work_left_s = [job.duration_s for job in jobs]  # at speed 1, after the last checkpoint
        self.start_overhead_s = [0.0] * count  # overhead of the next start
        self.attained_gpu_s = [0.0] * count  # in ended segments
        self.held_s = [0.0] * count  # in ended segments
        self.finish_s = [0.0] * count

        # The current segment of each running job.
        self.running: dict[int, None] = {}
        self.started_s = [0.0] * count
        self.ready_s = [0.0] * count  # when the overhead of the job's start ends
        self.speed = [1.0] * count
        self.held_gpus: list[float] = [0.0] * count
        self.placement: list[Placement] = [0] * count
        self.idle_since: list[float | None] = [None] * count  # as a utilization sampler would see it

        self._holders: dict[str, int] = {}  # masks of the nodes that hold each data set; disks are never full

        self.log: list[Segment] = []
        self.num_failures = 0
        self.num_done = 0
        self._version = [0] * count  # events queued under an older version are invalid
        self._events: list[tuple[float, int, int, int]] = []  # time, kind, job or node, version of the job
        self._failures = failures
        self._random = random.Random(failures.seed if failures else 0)
        self._futile_starts: dict[int, int] = {}
        self._progress = progress

    def _shape_of_each_job(self) -> list[int]:
        """Return the index of each job's shape in `shapes`, which is filled in order of first appearance."""
        matcher = NodeMatcher(self.cluster)
        numbers: dict[Shape, int] = {}
        number_of_request: dict[tuple[object, ...], int] = {}
        shape_of_job = []
        for job in self.jobs:
            team = job.team if self.policy.has_own_nodes else ""
            needs = (job.gpu_types, job.gpu_memory_bytes, job.memory_bytes, job.num_cpus, job.network_bits_per_s)
            request = (job.num_gpus, job.gpu_share, needs, team)
            number = number_of_request.get(request)
            if number is None:
                allowed = self._allowed(job, matcher)
                shape = Shape(job.num_gpus, round(job.gpu_share * WHOLE), allowed, team)
                number = numbers.setdefault(shape, len(numbers))
                number_of_request[request] = number
            shape_of_job.append(number)
        self.shapes = list(numbers)
        return shape_of_job

    def _allowed(self, job: ClusterJob, matcher: NodeMatcher) -> int:
        """Return the mask of nodes that meet the needs of a job: its team's nodes, or all if those cannot hold it."""
        mask = matcher.mask(job)
        if self.policy.has_own_nodes:
            own = mask & self.policy.own_nodes(job.team, self.cluster)
            if self.pool.fits(job.num_gpus, own):
                return own
        if not self.pool.fits(job.num_gpus, mask):
            name = f" {job.name[:60]}" if job.name else ""
            raise InputError(
                f"the cluster must be able to hold each job, but not job{name} of {job.num_gpus} GPUs:"
                f" {matcher.why_not(job)}"
            )
        return mask

    # Methods that a policy calls.

    def allocate(self, job: int) -> Placement | None:
        """Take GPUs from the pool for a waiting job, or return None if it does not fit; call `start_at` next."""
        allowed = self.shapes[self.shape[job]].allowed
        dataset = self.jobs[job].dataset
        if dataset:
            placement = self._take(job, allowed & self._holders.get(dataset, 0))
            if placement is not None:
                return placement
        return self._take(job, allowed)

    def _take(self, job: int, allowed: int) -> Placement | None:
        """Take the job's GPUs on the nodes of a mask."""
        gpus, milli, _, _ = self.shapes[self.shape[job]]
        if milli != WHOLE:
            return self.pool.take_share(milli, allowed)
        return self.pool.take(gpus, allowed)

    def _stage(self, job: int, placement: Placement, gpus: float) -> float:
        """Leave the job's data set on its nodes; return the time to copy it, which is 0 if all of them hold it."""
        dataset = self.jobs[job].dataset
        holders = self._holders.get(dataset, 0)
        nodes = mask_of([node for node, _ in nodes_of(placement, gpus)])
        self._holders[dataset] = holders | nodes
        return self.jobs[job].stage_s if nodes & ~holders else 0.0

    def start(self, job: int) -> bool:
        """Start a waiting job if it fits; otherwise return False and change nothing."""
        placement = self.allocate(job)
        if placement is None:
            return False
        self.start_at(job, placement)
        return True

    def start_at(self, job: int, placement: Placement, *, gpus: float | None = None, slowdown: float = 1.0) -> None:
        """Start a waiting job on GPUs that `allocate` took from the pool."""
        now = self.now
        if gpus is None:
            gpus = self.requested_gpus[job] * self.shapes[self.shape[job]].milli / WHOLE
        speed = 1.0 / slowdown
        if self._has_speeds[job]:
            speed = self._speed(job, placement, gpus) / slowdown
        ready = now + self.start_overhead_s[job]
        if self.jobs[job].dataset:
            ready += self._stage(job, placement, gpus)
        self.status[job] = RUNNING
        self.running[job] = None
        self.placement[job] = placement
        self.held_gpus[job] = gpus
        self.speed[job] = speed
        self.started_s[job] = now
        self.ready_s[job] = ready
        version = self._version[job] + 1
        self._version[job] = version
        end = ready + self.work_left_s[job] / speed
        heappush(self._events, (end, _END, job, version))
        if self._has_phases[job]:
            self._enter_phase(job)

    def preempt(self, job: int, ending: str = "preempted") -> None:
        """Stop a running job: it loses its work since the last checkpoint, and its next start has the restart cost."""
        self._stop(job, ending)
        self.status[job] = WAITING

    def resize(self, job: int, placement: Placement, gpus: float) -> None:
        """Start an elastic job, which was just preempted or is waiting, on another number of GPUs."""
        self.start_at(job, placement, gpus=gpus)

    def reclaim(self, job: int) -> None:
        """Take the GPUs from a job that holds them idle; the job is submitted again when it has work, or it ends."""
        assert self.idle_since[job] is not None
        position = self._position(job)
        index, phase_end = self._phase(job)
        self._stop(job, "reclaimed", saves_work=True)
        is_last_phase = index + 1 >= len(self.jobs[job].phases)
        if is_last_phase:
            self.work_left_s[job] = 0.0
            self._mark_done(job)
            return
        self.work_left_s[job] = self.jobs[job].duration_s - phase_end
        self.status[job] = AWAY
        back = self.now + phase_end - position
        heappush(self._events, (back, _BACK, job, self._version[job]))

    def wake(self, time_s: float) -> None:
        """Call `decide` at this time even if nothing happens."""
        heappush(self._events, (time_s, _WAKE, 0, 0))

    def elapsed(self, job: int) -> float:
        """Return the seconds that a job has held GPUs so far, in all segments; a real scheduler knows this too."""
        if self.status[job] != RUNNING:
            return self.held_s[job]
        return self.held_s[job] + (self.now - self.started_s[job])

    def loss_if_stopped(self, job: int) -> float:
        """Return the seconds of work since the last checkpoint of a running job."""
        return max(0.0, self.now - self.ready_s[job]) % self.checkpoint_s[job]

    # The event loop.

    def run(self) -> SimulationResult:
        """Simulate until every job has ended."""
        events, policy, status, version = self._events, self.policy, self.status, self._version
        count = len(self.jobs)
        arrivals = [*self.submit_s, math.inf]
        policy.attach(self)
        self._draw_failures()
        decide = policy.decide
        num_arrived = num_decisions = 0
        while self.num_done < count:
            now = arrivals[num_arrived]
            if events and events[0][0] < now:
                now = events[0][0]
            if now == math.inf:
                raise AssertionError(f"policy {policy.name} left {count - self.num_done} jobs waiting forever")
            self.now = now
            while events and events[0][0] <= now:
                _, kind, subject, stamp = heappop(events)
                if kind == _END:
                    if version[subject] == stamp:
                        self._end(subject)
                elif kind != _WAKE:
                    self._handle(kind, subject, stamp)
            while arrivals[num_arrived] <= now:
                status[num_arrived] = WAITING
                policy.submitted(num_arrived)
                num_arrived += 1
            decide()
            num_decisions += 1
            if self._progress is not None and num_decisions % _DECISIONS_PER_REPORT == 0:
                self._progress(self.num_done, count)
        return SimulationResult(
            policy=policy.name,
            jobs=self.jobs,
            cluster=self.cluster,
            log=self.log,
            finish_s=self.finish_s,
            num_failures=self.num_failures,
            notes=policy.notes(),
        )

    def _end(self, job: int) -> None:
        """End a job that has done all of its work."""
        now, started, speed = self.now, self.started_s[job], self.speed[job]
        gpus, placement = self.held_gpus[job], self.placement[job]
        held = now - started
        overhead = self.ready_s[job] - started
        idle = 0.0
        if self._has_phases[job]:
            duration = self.jobs[job].duration_s
            first = duration - self.work_left_s[job]
            idle = idle_between(self.jobs[job].phases, first, duration) / speed
        row = (job, started, now, gpus, overhead, 0.0, idle, placement, "ended", speed)
        self.log.append(tuple.__new__(Segment, row))  # takes a third of the time of calling Segment
        self.held_s[job] += held
        self.attained_gpu_s[job] += held * gpus
        self.pool.release(placement, int(gpus))
        del self.running[job]
        self.work_left_s[job] = 0.0
        self._mark_done(job)

    def _mark_done(self, job: int) -> None:
        self._version[job] += 1
        self.status[job] = DONE
        self.finish_s[job] = self.now
        self.idle_since[job] = None
        self.num_done += 1
        self.policy.ended(job)

    def _stop(self, job: int, ending: str, *, saves_work: bool = False) -> None:
        """End a segment before the job's end.

        With `saves_work` no work is lost: unsaved work is repeated as overhead of the next start.
        """
        now, started, ready, speed = self.now, self.started_s[job], self.ready_s[job], self.speed[job]
        restart = self.restart_s[job]
        overhead = min(now, ready) - started
        worked = now - started - overhead
        lost = worked % self.checkpoint_s[job] if worked > 0 else 0.0
        saved = worked - lost
        if saves_work:
            # An idle job's last checkpoint can be older than its idle time: the work in between is repeated.
            idle_time = now - (self.idle_since[job] or now)
            redone = max(0.0, lost - idle_time)
            saved, lost = worked, 0.0
            self.start_overhead_s[job] = restart + redone
        else:
            unfinished_overhead = max(0.0, ready - now)
            self.start_overhead_s[job] = restart + max(0.0, unfinished_overhead - restart)
        first = self.jobs[job].duration_s - self.work_left_s[job]
        last = first + saved * speed
        self.work_left_s[job] = max(0.0, self.work_left_s[job] - saved * speed)
        idle = 0.0
        if self._has_phases[job]:
            idle = idle_between(self.jobs[job].phases, first, last) / speed
        self._version[job] += 1
        gpus, placement = self.held_gpus[job], self.placement[job]
        self.log.append(Segment(job, started, now, gpus, overhead, lost, idle, placement, ending, speed))
        self.held_s[job] += now - started
        self.attained_gpu_s[job] += (now - started) * gpus
        self.pool.release(placement, int(gpus))
        self.idle_since[job] = None
        del self.running[job]

    # Idle phases.

    def _position(self, job: int) -> float:
        """Return the job's position on its own timeline, in seconds."""
        worked = max(0.0, self.now - self.ready_s[job]) * self.speed[job]
        return self.jobs[job].duration_s - self.work_left_s[job] + worked

    def _phase(self, job: int) -> tuple[int, float]:
        """Return the index of the job's current phase, and the position at which that phase ends."""
        return phase_at(self.jobs[job].phases, self._position(job))

    def _enter_phase(self, job: int) -> None:
        """Record whether the job leaves its GPUs idle now, and queue its next change of phase."""
        now, ready = self.now, self.ready_s[job]
        index, phase_end = self._phase(job)
        is_starting = now < ready
        self.idle_since[job] = now if is_idle(index) and not is_starting else None
        is_last_phase = index + 1 == len(self.jobs[job].phases)
        if is_last_phase and not is_starting:
            return
        change = max(now, ready) + (phase_end - self._position(job)) / self.speed[job]
        if is_idle(index) and is_starting:
            change = ready
        heappush(self._events, (change, _PHASE, job, self._version[job]))

    # Failures.

    def _draw_failures(self) -> None:
        if self._failures is not None and self._failures.per_1000_node_days > 0:
            for node in range(len(self.cluster.nodes)):
                self._draw_failure(node)

    def _draw_failure(self, node: int) -> None:
        assert self._failures is not None
        rate = self._failures.per_1000_node_days / 1000 / DAY
        first_submission = self.submit_s[0] if self.submit_s else 0.0
        failure = max(self.now, first_submission) + self._random.expovariate(rate)
        heappush(self._events, (failure, _FAIL, node, 0))

    def _handle(self, kind: int, subject: int, stamp: int) -> None:
        """Handle an event other than a job's end; `subject` is a node for failures and repairs, otherwise a job."""
        if kind == _FAIL:
            self._fail_node(subject)
        elif kind == _REPAIR:
            self.pool.repair(subject)
            self._draw_failure(subject)
        elif self._version[subject] != stamp:
            return
        elif kind == _PHASE:
            self._enter_phase(subject)
            self.policy.phase_changed(subject)
        elif kind == _BACK:
            self.status[subject] = WAITING
            self.policy.submitted(subject)

    def _fail_node(self, node: int) -> None:
        """Stop the jobs that hold GPUs on the node, and remove the node from the pool until it is repaired."""
        assert self._failures is not None
        for victim in [job for job in self.running if self._is_on(job, node)]:
            work_left = self.work_left_s[victim]
            self.preempt(victim, "failed")
            is_futile = self.work_left_s[victim] == work_left
            self._futile_starts[victim] = self._futile_starts.get(victim, 0) + 1 if is_futile else 0
            if self._futile_starts[victim] > _MAX_FUTILE_STARTS:
                raise self._never_ends(victim)
            self.policy.stopped(victim)
        self.pool.fail(node)
        self.num_failures += 1
        heappush(self._events, (self.now + self._failures.repair_s, _REPAIR, node, 0))

    def _is_on(self, job: int, node: int) -> bool:
        return any(other == node for other, _ in nodes_of(self.placement[job], self.held_gpus[job]))

    def _never_ends(self, job: int) -> InputError:
        assert self._failures is not None
        return InputError(
            f"with {self._failures.per_1000_node_days:g} failures per 1,000 node-days and a checkpoint every"
            f" {self.checkpoint_s[job]:g} s, a job of {self.requested_gpus[job]:g} GPUs would never end:"
            f" {_MAX_FUTILE_STARTS:,} failures stopped it before it had saved anything more",
            hint="save more often (--checkpoint), or assume fewer failures (--failures)",
        )

    # Speeds.

    def _speed(self, job: int, placement: Placement, gpus: float) -> float:
        """Return the job's speed on this type and number of GPUs: seconds of its duration per second of work."""
        request = self.jobs[job]
        node = nodes_of(placement, gpus)[0][0]
        speed = dict(request.type_speeds).get(self.cluster.nodes[node].gpu_type, 1.0)
        if request.min_gpus is not None and gpus != request.num_gpus:
            speed *= (gpus / request.num_gpus) ** request.scaling
        return speed


def _stated(stated_s: float | None, assumed_s: float) -> float:
    """Return the value that the history states for a job, or the assumed value if it states none."""
    return assumed_s if stated_s is None else stated_s
