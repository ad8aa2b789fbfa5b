"""EASY backfill: in order of submission, but a job can pass the first waiting job if that does not delay the first job.

Rule: the first waiting job gets a reservation, at the time and on the nodes where it will fit if all running jobs end
as estimated. Another job can start now if its estimated end is before that, or on GPUs that the reservation leaves
free. Estimates are the users' time limits, or else the 90th percentile of the durations of the same users' or teams'
jobs of that size; a job that outlives its estimate is expected to run as long again. `easy-oracle` knows all durations.
Source: Lifka 1995; Mu'alem and Feitelson, TPDS 2001. When wrong: if limits are the partition's maximum, nothing fits
before a reservation; with predictions that are too short, the first job is delayed after all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from flatout.schedule.durations import Durations
from flatout.schedule.engine import WAITING
from flatout.schedule.estimate_queue import EstimateQueue
from flatout.schedule.policies.reservation import EstimatedEnd, Reservation, reserve
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatout.schedule.engine import Shape, Simulation

_QUANTILE = 0.9


class _Candidate(NamedTuple):
    """A waiting job that can start now. `uses_left`: whether it does so on GPUs that the reservation leaves free."""

    job: int
    shape: int
    uses_left: bool


class Easy(Policy):
    name: ClassVar[str] = "easy"
    summary: ClassVar[str] = (
        "in order of submission; jobs can overtake if they do not delay the first one (EASY backfill)"
    )

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.order: deque[int] = deque()
        self.queues = [EstimateQueue() for _ in sim.shapes]
        self.estimate = [0.0] * len(sim.jobs)
        self.ends: list[EstimatedEnd] = []  # of the running jobs, in order
        self.end_of: dict[int, float] = {}
        self._position = 0
        self._reservation: Reservation | None = None  # None: must be computed for the first job

    def estimated(self, job: int) -> float:
        """Return the estimated time that a waiting job will take, on the slowest GPUs that it may get."""
        limit = self.sim.jobs[job].limit_s
        return limit if limit is not None else self.durations.quantile(job, _QUANTILE)

    def estimated_here(self, job: int) -> float:
        """Return the estimated time that a job will take on the GPUs on which it just started."""
        return self.estimate[job]

    def submitted(self, job: int) -> None:
        self.estimate[job] = self.estimated(job)
        self.order.append(job)
        self._position += 1
        holds_gpus_s = self.sim.start_overhead_s[job] + self.estimate[job]
        self.queues[self.sim.shape[job]].append(job, self._position, holds_gpus_s)

    def stopped(self, job: int) -> None:
        self._remove_running(job)
        self.submitted(job)
        # The job is ahead of all others, because it had its turn; in the search for backfilling it comes last.
        self.order.pop()
        self.order.appendleft(job)
        self._reservation = None

    def ended(self, job: int) -> None:
        self.durations.ended(job, self.sim.held_s[job], self.estimate[job])
        self._remove_running(job)

    def _remove_running(self, job: int) -> None:
        end = self.end_of.pop(job)
        del self.ends[bisect_left(self.ends, (end, job))]
        if end > self.sim.now + 1e-6:
            self._reservation = None  # the job left earlier than the reservation expects

    def _add_running(self, job: int) -> None:
        sim = self.sim
        self.queues[sim.shape[job]].remove(job)
        end_s = sim.ready_s[job] + self.estimated_here(job)
        self.end_of[job] = end_s
        insort(self.ends, EstimatedEnd(end_s, job, sim.placement[job], int(sim.held_gpus[job])))

    def decide(self) -> None:
        sim, order = self.sim, self.order
        while order:
            first = order[0]
            if sim.status[first] == WAITING:
                if not sim.start(first):
                    break
                self._add_running(first)
            order.popleft()
        if order and (sim.pool.num_free or sim.pool.partial):
            self._backfill(order[0])

    def _backfill(self, first: int) -> None:
        """Start jobs that don't delay the first one until no more can start."""
        sim = self.sim
        reservation = self._reservation
        if reservation is None or reservation.job != first or sim.now >= reservation.start_s:
            self._extend_overdue()
            reservation = self._reservation = reserve(sim, first, self.ends)
        blocked: set[int] = set()  # shapes that do not fit
        while sim.pool.num_free or sim.pool.partial:
            candidate = self._candidate(reservation, blocked)
            if candidate is None:
                return
            placement = self._allocate(candidate, reservation)
            assert placement is not None
            sim.start_at(candidate.job, placement)
            self._add_running(candidate.job)
            if candidate.uses_left:
                reservation.take_left(placement, int(sim.held_gpus[candidate.job]))

    def _candidate(self, reservation: Reservation, blocked: set[int]) -> _Candidate | None:
        """Return the earliest waiting job that can start now; shapes that do not fit are added to `blocked`."""
        shapes = self.sim.shapes
        window_s = reservation.start_s - self.sim.now
        best: _Candidate | None = None
        best_position = self._position + 1
        for shape, queue in enumerate(self.queues):
            if not queue.num_waiting or shape in blocked:
                continue
            if not self._fits(shapes[shape]):
                blocked.add(shape)
                continue
            first_position = queue.positions[queue.first]
            if first_position >= best_position:
                continue
            # Jobs that end before the reservation can start anywhere.
            index = queue.first_within(window_s)
            if index >= 0 and queue.positions[index] < best_position:
                best_position = queue.positions[index]
                best = _Candidate(queue.jobs[index], shape, False)
            if first_position >= best_position:
                continue
            # Any job can start on GPUs that the reservation leaves free.
            if self._fits_on_left(shapes[shape], reservation):
                best_position = first_position
                best = _Candidate(queue.jobs[queue.first], shape, True)
        return best

    def _fits(self, shape: Shape) -> bool:
        pool = self.sim.pool
        if shape.milli != WHOLE:
            return pool.fits_share(shape.milli, shape.allowed, shape.allowed)
        return pool.fits(shape.gpus, shape.allowed)

    def _fits_on_left(self, shape: Shape, reservation: Reservation) -> bool:
        """Whether a job of this shape fits now on GPUs that the reservation leaves free."""
        pool = self.sim.pool
        left = shape.allowed & reservation.nodes_with_left(shape.gpus)
        if shape.milli == WHOLE:
            return pool.fits(shape.gpus, left)
        return pool.fits_share(shape.milli, shape.allowed, left, _shared_gpus_left(reservation, shape.milli))

    def _allocate(self, candidate: _Candidate, reservation: Reservation) -> Placement | None:
        pool = self.sim.pool
        gpus, milli, allowed, _ = self.sim.shapes[candidate.shape]
        left = allowed
        if candidate.uses_left:
            left &= reservation.nodes_with_left(gpus)
        if milli == WHOLE:
            return pool.take(gpus, left)
        if candidate.uses_left:
            return pool.take_share_where(milli, allowed, left, _shared_gpus_left(reservation, milli))
        return pool.take_share(milli, allowed)

    def _extend_overdue(self) -> None:
        """Extend the estimates of jobs that have outlived them: each is expected to run as long again."""
        now = self.sim.now
        while self.ends and self.ends[0][0] <= now:
            overdue = self.ends.pop(0)
            end_s = now + max(60.0, now - self.sim.started_s[overdue.job])
            self.end_of[overdue.job] = end_s
            insort(self.ends, overdue._replace(end_s=end_s))

    def notes(self) -> tuple[str, ...]:
        if all(job.limit_s is not None for job in self.sim.jobs):
            return ("estimates are the users' time limits",)
        return (self.durations.error_text() + " (an estimate is the time that 90 % of such jobs stayed within)",)


class EasyOracle(Easy):
    name: ClassVar[str] = "easy-oracle"
    summary: ClassVar[str] = "the same, with all durations known"
    is_oracle: ClassVar[bool] = True

    def estimated(self, job: int) -> float:
        speeds = dict(self.sim.jobs[job].type_speeds)
        return self.sim.work_left_s[job] / min([1.0, *speeds.values()])

    def estimated_here(self, job: int) -> float:
        return self.sim.work_left_s[job] / self.sim.speed[job]

    def notes(self) -> tuple[str, ...]:
        return ("knows how long each job will run",)


def _shared_gpus_left(reservation: Reservation, milli: int) -> Callable[[int, int], bool]:
    """Return whether a share can stay on a shared GPU, by node and slot, past the start of the reservation."""
    return lambda node, slot: reservation.leaves_share(node, slot, milli)
