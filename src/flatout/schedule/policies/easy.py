"""EASY backfill: in order of submission, but a job can pass the first waiting job if that does not delay the first job.

Rule: the first waiting job gets a reservation, at the time and on the nodes where it will fit if all running jobs end
as estimated. Another job can start now if its estimated end is before that, or on GPUs that the reservation leaves
free. Estimates are the users' time limits, or else the 90th percentile of the durations of the same users' or teams'
jobs of that size; a job that outlives its estimate is expected to run as long again. `easy-oracle` knows all durations.
Source: Lifka 1995; Mu'alem and Feitelson, TPDS 2001. When wrong: if limits are the partition's maximum, nothing fits
before a reservation; with predictions that are too short, the first job is delayed after all. In reservations, a share
of a GPU counts as a whole GPU.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from flatout.schedule.durations import Durations
from flatout.schedule.engine import WAITING
from flatout.schedule.estimate_queue import EstimateQueue
from flatout.schedule.policies.reservation import Reservation, reserve
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement, nodes_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

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
        # Running jobs by estimated end, with their whole GPUs by node.
        self.ends: list[tuple[float, int, tuple[tuple[int, int], ...]]] = []
        self.end_of: dict[int, float] = {}
        self._position = 0
        self._reservation: Reservation | None = None  # None: must be computed for the first job

    def estimated(self, job: int) -> float:
        limit = self.sim.jobs[job].limit_s
        return limit if limit is not None else self.durations.quantile(job, _QUANTILE)

    def submitted(self, job: int) -> None:
        self.estimate[job] = self.estimated(job)
        self.order.append(job)
        self._position += 1
        self.queues[self.sim.shape[job]].append(job, self._position, self.estimate[job])

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
        self.queues[self.sim.shape[job]].remove(job)
        end = self.sim.ready_s[job] + self.estimate[job]
        self.end_of[job] = end
        insort(self.ends, (end, job, self._pieces(job)))

    def _pieces(self, job: int) -> tuple[tuple[int, int], ...]:
        """Return the whole GPUs of a running job by node; a share counts as a whole GPU."""
        held = nodes_of(self.sim.placement[job], self.sim.held_gpus[job])
        return tuple((node, math.ceil(count)) for node, count in held)

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
            if placement is None:  # a share that fits on no GPU
                blocked.add(candidate.shape)
                continue
            sim.start_at(candidate.job, placement)
            self._add_running(candidate.job)
            if candidate.uses_left:
                reservation.take_left(self._pieces(candidate.job))

    def _candidate(self, reservation: Reservation, blocked: set[int]) -> _Candidate | None:
        """Return the earliest waiting job that can start now; shapes that do not fit are added to `blocked`."""
        pool, shapes, num_free = self.sim.pool, self.sim.shapes, self.sim.pool.num_free
        window_s = reservation.start_s - self.sim.now
        best: _Candidate | None = None
        best_position = self._position + 1
        for shape, queue in enumerate(self.queues):
            if not queue.num_waiting or shape in blocked:
                continue
            gpus, milli, allowed, _ = shapes[shape]
            is_share = milli != WHOLE
            if not is_share and (gpus > num_free or not pool.fits(gpus, allowed)):
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
            if is_share or first_position >= best_position:
                continue
            # Any job can start on GPUs that the reservation leaves free.
            left = reservation.nodes_with_left(gpus)
            if pool.fits(gpus, allowed & left):
                best_position = first_position
                best = _Candidate(queue.jobs[queue.first], shape, True)
        return best

    def _allocate(self, candidate: _Candidate, reservation: Reservation) -> Placement | None:
        gpus, milli, allowed, _ = self.sim.shapes[candidate.shape]
        if milli != WHOLE:
            return self.sim.pool.take_share(milli, allowed)
        if candidate.uses_left:
            allowed &= reservation.nodes_with_left(gpus)
        return self.sim.pool.take(gpus, allowed)

    def _extend_overdue(self) -> None:
        """Extend the estimates of jobs that have outlived them: each is expected to run as long again."""
        now = self.sim.now
        while self.ends and self.ends[0][0] <= now:
            _, job, pieces = self.ends.pop(0)
            end = now + max(60.0, now - self.sim.started_s[job])
            self.end_of[job] = end
            insort(self.ends, (end, job, pieces))

    def notes(self) -> tuple[str, ...]:
        if all(job.limit_s is not None for job in self.sim.jobs):
            return ("estimates are the users' time limits",)
        return (self.durations.error_text() + " (an estimate is the time that 90 % of such jobs stayed within)",)


class EasyOracle(Easy):
    name: ClassVar[str] = "easy-oracle"
    summary: ClassVar[str] = "the same, with all durations known"
    is_oracle: ClassVar[bool] = True

    def estimated(self, job: int) -> float:
        return self.sim.work_left_s[job]

    def notes(self) -> tuple[str, ...]:
        return ("knows how long each job will run",)
