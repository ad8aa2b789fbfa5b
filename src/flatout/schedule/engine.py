"""The simulator: events in order of time, jobs placed by a policy, every GPU-second written to a log.

In: jobs in order of submission, a cluster, a policy. Out: a `SimulationResult`: the log of segments (a job on its GPUs
from one time to another), and when each job ended. All measures are computed from the log afterwards, and tests check
the log alone.

What a segment's time went into, which sums to it: `useful` work; `overhead`, from being placed again to the first new
step; `lost` work, done since the last checkpoint when the job was stopped; and `idle`, held without use.

Times of equal value are handled in a fixed order (ends, failures, repairs, changes of phase, submissions; then by job),
and nothing iterates over a set, so that a run depends on its arguments alone.

It does not model the network between jobs, the time of the scheduler's own decisions, or jobs that depend on others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from flatout.errors import InputError
from flatout.schedule.cluster import Cluster
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.pool import WHOLE, Placement, Pool, nodes_of

FUTURE, WAITING, RUNNING, AWAY, DONE = range(5)  # AWAY: reclaimed while idle, until it has work again
_END, _FAIL, _REPAIR, _PHASE, _BACK, _WAKE = range(6)
DAY = 86_400.0
_MOST_VAIN = 10_000  # failures of one job without a checkpoint in between


class FailureModel(msgspec.Struct, frozen=True, kw_only=True):
    """Node failures as a Poisson process, and the time to repair."""

    per_1000_node_days: float
    repair_s: float = 4 * 3600.0
    seed: int = 0


class Segment(NamedTuple):
    """A job on its GPUs. `gpus` counts a share of a GPU as such; seconds are of the job's time, not times GPUs."""

    job: int
    start_s: float
    end_s: float
    gpus: float
    overhead_s: float
    lost_s: float
    idle_s: float
    place: Placement
    ending: str  # ended, preempted, failed, resized, reclaimed
    speed: float = 1.0  # seconds of the job's own duration in a second of work

    @property
    def useful_s(self) -> float:
        return self.end_s - self.start_s - self.overhead_s - self.lost_s - self.idle_s


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. `finish_s` by job."""

    policy: str
    jobs: Sequence[ClusterJob]
    cluster: Cluster
    log: list[Segment]
    finish_s: list[float]
    num_failures: int
    notes: tuple[str, ...] = ()


class Shape(NamedTuple):
    """What decides where a job fits; jobs of one shape are interchangeable for a pool."""

    gpus: int
    milli: int  # of a GPU; 1000 for whole ones
    allowed: int  # mask of nodes
    team: str  # only where a policy gives teams nodes of their own


class SimulatedPolicy(Protocol):
    """The calls that a simulation makes to its policy; `flatout.schedule.policy.Policy` documents each of them."""

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
    """One run. A policy reads the public attributes, and acts by `start`, `start_at`, `preempt`, `resize` and `wake`.

    A policy must not read `left`, `jobs[...].duration_s`, `finish_s` or `phases` unless it says that it is an oracle.
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
        given = assumptions or Assumptions()
        self.jobs, self.cluster, self.policy = jobs, cluster, policy
        self.now = 0.0
        self.pool = policy.pool(cluster)
        self.submit = [job.submit_s for job in jobs]
        self.gpus = [job.num_gpus for job in jobs]
        self.status = [FUTURE] * count
        self.left = [job.duration_s for job in jobs]  # seconds of work at speed 1, after the last checkpoint
        self.pending = [0.0] * count  # overhead that the next start brings
        self.restart = [given.restart_s if job.restart_s is None else job.restart_s for job in jobs]
        self.interval = [given.checkpoint_s if job.checkpoint_s is None else job.checkpoint_s for job in jobs]
        self.attained = [0.0] * count  # seconds held so far, times GPUs
        self.held_s = [0.0] * count  # seconds held so far
        self.started = [0.0] * count
        self.ready = [0.0] * count
        self.speed = [1.0] * count
        self.size: list[float] = [0.0] * count  # GPUs held now
        self.place: list[Placement] = [0] * count
        self.idle_since: list[float | None] = [None] * count  # as a sampler of utilization sees it
        self.finish_s = [0.0] * count
        self.log: list[Segment] = []
        self.running: dict[int, None] = {}
        self.failed = 0
        self._version = [0] * count
        self._events: list[tuple[float, int, int, int]] = []
        self._is_phased = [bool(job.phases) for job in jobs]
        self._has_speeds = [bool(job.type_speeds) or job.min_gpus is not None for job in jobs]
        self._failures = failures
        self._random = random.Random(failures.seed if failures else 0)
        self._vain: dict[int, int] = {}
        self._progress = progress
        self.shapes: list[Shape] = []
        self.shape = self._shapes()

    def _shapes(self) -> list[int]:
        """The shape of each job; a shape is interned in order of first appearance."""
        known: dict[Shape, int] = {}
        memo: dict[tuple[object, ...], int] = {}
        found = []
        for job in self.jobs:
            key = (job.num_gpus, job.gpu_share, job.gpu_types, job.team if self.policy.has_own_nodes else "")
            number = memo.get(key)
            if number is None:
                shape = Shape(job.num_gpus, round(job.gpu_share * WHOLE), self._allowed(job), str(key[3]))
                number = memo[key] = known.setdefault(shape, len(known))
            found.append(number)
        self.shapes = list(known)
        return found

    def _allowed(self, job: ClusterJob) -> int:
        """The nodes that a job may use; where its team's own ones can't hold it, those of all teams."""
        mask = -1
        if job.gpu_types:
            mask = sum(1 << n for n, node in enumerate(self.cluster.nodes) if node.gpu_type in job.gpu_types)
        if self.policy.has_own_nodes:
            own = mask & self.policy.own_nodes(job.team, self.cluster)
            if self.pool.fits(job.num_gpus, own):
                return own
        if not self.pool.fits(job.num_gpus, mask):
            raise InputError(
                f"the cluster must hold each job, but none of its nodes holds a job of {job.num_gpus} GPUs"
                + (f" of type {' or '.join(job.gpu_types)}" if job.gpu_types else "")
            )
        return mask

    # What a policy calls.

    def find(self, job: int) -> Placement | None:
        """GPUs for a waiting job, taken from the pool, or None; follow it by `start_at`."""
        gpus, milli, allowed, _ = self.shapes[self.shape[job]]
        if milli != WHOLE:
            return self.pool.take_share(milli, allowed)
        return self.pool.take(gpus, allowed)

    def start(self, job: int) -> bool:
        """Start a waiting job where the pool finds room; False, and nothing changes, where it finds none."""
        place = self.find(job)
        if place is None:
            return False
        self.start_at(job, place)
        return True

    def start_at(self, job: int, place: Placement, *, gpus: float | None = None, slowdown: float = 1.0) -> None:
        """Start a waiting job on GPUs that were taken from the pool for it."""
        now = self.now
        milli = self.shapes[self.shape[job]].milli
        size = self.gpus[job] * milli / WHOLE if gpus is None else gpus
        speed = self._speed(job, place, size) / slowdown if self._has_speeds[job] else 1.0 / slowdown
        ready = now + self.pending[job]
        self.status[job] = RUNNING
        self.running[job] = None
        self.place[job], self.size[job], self.speed[job] = place, size, speed
        self.started[job], self.ready[job] = now, ready
        self._version[job] = version = self._version[job] + 1
        heappush(self._events, (ready + self.left[job] / speed, _END, job, version))
        if self._is_phased[job]:
            self._next_phase(job)

    def preempt(self, job: int, ending: str = "preempted") -> None:
        """Stop a running job: work since its last checkpoint is lost, and its next start brings the restart cost."""
        self._stop(job, ending)
        self.status[job] = WAITING

    def resize(self, job: int, place: Placement, gpus: float) -> None:
        """Start an elastic job, which was preempted just now or waits, with another number of GPUs."""
        self.start_at(job, place, gpus=gpus)

    def reclaim(self, job: int) -> None:
        """Take the GPUs of a job that holds them idle; it comes back when it has work again, or has ended."""
        assert self.idle_since[job] is not None
        position, (index, boundary) = self._position(job), self._phase(job)
        self._stop(job, "reclaimed", saves=True)
        duration = self.jobs[job].duration_s
        if index + 1 >= len(self.jobs[job].phases):
            self.left[job] = 0.0
            self._ended(job)
            return
        self.left[job] = duration - boundary
        self.status[job] = AWAY
        heappush(self._events, (self.now + boundary - position, _BACK, job, self._version[job]))

    def wake(self, time_s: float) -> None:
        """Call `decide` at this time even if nothing happens."""
        heappush(self._events, (time_s, _WAKE, 0, 0))

    def elapsed(self, job: int) -> float:
        """Seconds that a job has held GPUs so far, all segments together; what any scheduler can see."""
        return self.held_s[job] + (self.now - self.started[job] if self.status[job] == RUNNING else 0.0)

    def loss_if_stopped(self, job: int) -> float:
        """Seconds of work since the last checkpoint of a running job."""
        return max(0.0, self.now - self.ready[job]) % self.interval[job]

    # The loop.

    def run(self) -> SimulationResult:
        """Until every job has ended."""
        events, submit, count, policy = self._events, self.submit, len(self.jobs), self.policy
        status, version = self.status, self._version
        policy.attach(self)
        self._draw_failures()
        submitted, decide, decisions = 0, policy.decide, 0
        self.num_done = 0
        while self.num_done < count:
            if submitted < count:
                now = submit[submitted]
                if events and events[0][0] < now:
                    now = events[0][0]
            else:
                if not events:
                    raise AssertionError(f"policy {policy.name} left {count - self.num_done} jobs waiting for ever")
                now = events[0][0]
            self.now = now
            while events and events[0][0] <= now:
                _, kind, job, stamp = heappop(events)
                if kind == _END:
                    if version[job] == stamp:
                        self._end(job)
                elif kind != _WAKE:
                    self._handle(kind, job, stamp)
            while submitted < count and submit[submitted] <= now:
                status[submitted] = WAITING
                policy.submitted(submitted)
                submitted += 1
            decide()
            decisions += 1
            if self._progress is not None and not decisions & 4095:
                self._progress(self.num_done, count)
        return SimulationResult(
            policy=policy.name,
            jobs=self.jobs,
            cluster=self.cluster,
            log=self.log,
            finish_s=self.finish_s,
            num_failures=self.failed,
            notes=policy.notes(),
        )

    def _end(self, job: int) -> None:
        now = self.now
        start, size, place = self.started[job], self.size[job], self.place[job]
        overhead = self.ready[job] - start
        idle = (
            self._idle(job, self.jobs[job].duration_s - self.left[job]) / self.speed[job]
            if self._is_phased[job]
            else 0.0
        )
        row = (job, start, now, size, overhead, 0.0, idle, place, "ended", self.speed[job])
        self.log.append(tuple.__new__(Segment, row))  # a third of the time of calling Segment
        self.held_s[job] += now - start
        self.attained[job] += (now - start) * size
        self.pool.give(place, int(size))
        del self.running[job]
        self.left[job] = 0.0
        self._ended(job)

    def _ended(self, job: int) -> None:
        self._version[job] += 1
        self.status[job] = DONE
        self.finish_s[job] = self.now
        self.idle_since[job] = None
        self.num_done += 1
        self.policy.ended(job)

    def _stop(self, job: int, ending: str, *, saves: bool = False) -> None:
        """End a segment before the job's end. `saves`: nothing is lost, what isn't saved is done again as overhead."""
        now, start, speed = self.now, self.started[job], self.speed[job]
        overhead = min(now, self.ready[job]) - start
        worked = now - start - overhead
        lost = worked % self.interval[job] if worked > 0 else 0.0
        saved = worked - lost
        first = self.jobs[job].duration_s - self.left[job]
        self._version[job] += 1
        unfinished = self.ready[job] - now if now < self.ready[job] else 0.0
        if saves:
            # Where the job was idle its state may be older than the idle time: the work since is done again.
            redo = max(0.0, lost - (now - (self.idle_since[job] or now)))
            saved, lost = worked, 0.0
            self.pending[job] = self.restart[job] + redo
        else:
            self.pending[job] = self.restart[job] + max(0.0, unfinished - self.restart[job])
        self.left[job] = max(0.0, self.left[job] - saved * speed)
        idle = self._idle(job, first, first + saved * speed) / speed if self._is_phased[job] else 0.0
        place, size = self.place[job], self.size[job]
        self.log.append(Segment(job, start, now, size, overhead, lost, idle, place, ending, speed))
        self.held_s[job] += now - start
        self.attained[job] += (now - start) * self.size[job]
        self.pool.give(self.place[job], int(self.size[job]))
        self.idle_since[job] = None
        del self.running[job]

    # Idle phases.

    def _position(self, job: int) -> float:
        """Seconds of the job's own time line that it has behind it."""
        worked = max(0.0, self.now - self.ready[job]) * self.speed[job]
        return self.jobs[job].duration_s - self.left[job] + worked

    def _phase(self, job: int) -> tuple[int, float]:
        """The phase that the job is in, and the position at which it ends."""
        position, boundary = self._position(job) + 1e-6, 0.0
        phases = self.jobs[job].phases
        for index, length in enumerate(phases):
            boundary += length
            if position < boundary:
                return index, boundary
        return len(phases) - 1, boundary

    def _next_phase(self, job: int) -> None:
        index, boundary = self._phase(job)
        is_idle = bool(index % 2) and self.now >= self.ready[job]
        self.idle_since[job] = self.now if is_idle else None
        if index + 1 < len(self.jobs[job].phases) or (self.now < self.ready[job]):
            begins = max(self.now, self.ready[job])
            position = self._position(job)
            next_s = begins + (boundary - position) / self.speed[job]
            if index % 2 and self.now < self.ready[job]:
                next_s = self.ready[job]
            heappush(self._events, (next_s, _PHASE, job, self._version[job]))

    def _idle(self, job: int, first: float, last: float | None = None) -> float:
        """Idle seconds of the job's time line between two positions."""
        boundary, idle = 0.0, 0.0
        end = self.jobs[job].duration_s if last is None else last
        for index, length in enumerate(self.jobs[job].phases):
            if index % 2:
                idle += max(0.0, min(end, boundary + length) - max(first, boundary))
            boundary += length
        return idle

    # Failures.

    def _draw_failures(self) -> None:
        if self._failures is not None and self._failures.per_1000_node_days > 0:
            for node in range(len(self.cluster.nodes)):
                self._next_failure(node)

    def _next_failure(self, node: int) -> None:
        assert self._failures is not None
        rate = self._failures.per_1000_node_days / 1000 / DAY
        first = self.submit[0] if self.submit else 0.0
        heappush(self._events, (max(self.now, first) + self._random.expovariate(rate), _FAIL, node, 0))

    def _handle(self, kind: int, job: int, stamp: int) -> None:
        if kind == _FAIL:
            node = job
            for victim in [j for j in self.running if any(n == node for n, _ in nodes_of(self.place[j], self.size[j]))]:
                before = self.left[victim]
                self.preempt(victim, "failed")
                self._vain[victim] = self._vain.get(victim, 0) + 1 if self.left[victim] == before else 0
                if self._vain[victim] > _MOST_VAIN:
                    raise self._never_ends(victim)
                self.policy.stopped(victim)
            self.pool.fail(node)
            self.failed += 1
            assert self._failures is not None
            heappush(self._events, (self.now + self._failures.repair_s, _REPAIR, node, 0))
        elif kind == _REPAIR:
            self.pool.repair(job)
            self._next_failure(job)
        elif self._version[job] == stamp and kind == _PHASE:
            self._next_phase(job)
            self.policy.phase_changed(job)
        elif self._version[job] == stamp and kind == _BACK:
            self.status[job] = WAITING
            self.policy.submitted(job)

    def _never_ends(self, job: int) -> InputError:
        assert self._failures is not None
        return InputError(
            f"with {self._failures.per_1000_node_days:g} failures per 1,000 node-days and a checkpoint every "
            f"{self.interval[job]:g} s, a job of {self.gpus[job]:g} GPUs would never end: {_MOST_VAIN:,} failures "
            "stopped it before it had saved anything more",
            hint="save more often (--checkpoint), or assume fewer failures (--failures)",
        )

    # Speeds.

    def _speed(self, job: int, place: Placement, size: float) -> float:
        given = self.jobs[job]
        node = nodes_of(place, size)[0][0]
        speed = dict(given.type_speeds).get(self.cluster.nodes[node].gpu_type, 1.0)
        if given.min_gpus is not None and size != given.num_gpus:
            speed *= (size / given.num_gpus) ** given.scaling
        return speed
