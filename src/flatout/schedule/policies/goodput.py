"""Goodput-elastic: elastic jobs get as many GPUs as are worth it, and shrink so that others can start.

Rule: every ten minutes, if something changed, all jobs in order of submission get their least number of GPUs; the
rest goes, by doubling, to the job whose speed gains most per GPU. A job is resized (its restart cost and lost work
charged) at most once per hour, and only if GPUs are short or it can double. Jobs without a range are rigid.
Source: Qiao et al., Pollux, OSDI'21; Subramanya et al., Sia, SOSP'23. The speed is (GPUs / requested) ** scaling;
`scaling` must include statistical efficiency, because histories have no gradient noise.
When wrong: if `scaling` is guessed; if jobs don't keep their batch size or can't restart on other numbers of
GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

ROUND_S = 600.0
SETTLED_S = 3600.0


class GoodputElastic(Policy):
    name: ClassVar[str] = "goodput"
    summary: ClassVar[str] = "elastic jobs grow and shrink so that each GPU gains most (Pollux, Sia)"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.waiting: dict[int, None] = {}
        self._next_round = -1e300
        self._has_changed = False
        self._ranges = [self._gpu_range(job) for job in range(len(sim.jobs))]

    def submitted(self, job: int) -> None:
        self.waiting[job] = None
        self._has_changed = True

    def stopped(self, job: int) -> None:
        self.submitted(job)

    def ended(self, job: int) -> None:
        self._has_changed = True

    def _gpu_range(self, job: int) -> tuple[int, int]:
        request = self.sim.jobs[job]
        if request.min_gpus is None or self.sim.shapes[self.sim.shape[job]].milli != WHOLE:
            return request.num_gpus, request.num_gpus
        low = min(request.min_gpus, request.num_gpus)
        high = max(low, request.max_gpus or request.num_gpus)
        return low, high

    def range_of(self, job: int) -> tuple[int, int]:
        """Return the least and the most GPUs that the job can run on; equal for a rigid job."""
        return self._ranges[job]

    def _is_rigid(self, job: int) -> bool:
        low, high = self._ranges[job]
        return low == high

    def _is_settling(self, job: int) -> bool:
        """Whether the job started or was resized too recently to be resized again."""
        sim = self.sim
        return job in sim.running and sim.now - sim.started_s[job] < SETTLED_S

    def decide(self) -> None:
        sim = self.sim
        if self._has_changed and sim.now >= self._next_round:
            self._has_changed = False
            self._resize_jobs()
            self._next_round = sim.now + ROUND_S
            if self.waiting:
                sim.wake(self._next_round)
        self._fill()

    def _fill(self) -> None:
        """Start the jobs that fit with the GPUs requested or with their least number; in order, but others can pass."""
        sim, blocked = self.sim, set[int]()
        if not sim.pool.num_free and not sim.pool.partial:
            return
        for job in [*self.waiting]:
            if sim.shape[job] in blocked:
                continue
            requested = sim.requested_gpus[job]
            low, _ = self.range_of(job)
            has_started = self._start(job, requested)
            if not has_started and low < requested:
                has_started = self._start(job, low)
            if not has_started:
                blocked.add(sim.shape[job])

    def _start(self, job: int, gpus: int) -> bool:
        _, milli, allowed, _ = self.sim.shapes[self.sim.shape[job]]
        is_share = milli != WHOLE
        pool = self.sim.pool
        placement: Placement | None = pool.take_share(milli, allowed) if is_share else pool.take(gpus, allowed)
        if placement is None:
            return False
        self.sim.start_at(job, placement, gpus=None if is_share else float(gpus))
        del self.waiting[job]
        return True

    def _resize_jobs(self) -> None:
        """Choose a number of GPUs for every job, running or waiting, and make the changes that are worth it."""
        sim = self.sim
        jobs = sorted([*sim.running, *self.waiting], key=lambda job: (sim.submit_s[job], job))
        if all(self._is_rigid(job) for job in jobs):
            return
        target, num_left = self._least_gpus(jobs)
        self._grow(target, num_left)
        self._stop_resized(target)
        for job in jobs:
            if job in self.waiting and job in target:
                self._start_elastic(job, target[job])

    def _least_gpus(self, jobs: Sequence[int]) -> tuple[dict[int, int], int]:
        """Return the least number of GPUs of each job that fits, in order, and the number of GPUs left."""
        sim = self.sim
        pool = sim.pool
        num_left = sum(count for node, count in enumerate(pool.capacity) if not pool.down >> node & 1)
        target: dict[int, int] = {}
        for job in jobs:
            low, _ = self.range_of(job)
            keeps_its_gpus = job in sim.running and (self._is_rigid(job) or self._is_settling(job))
            least = int(sim.held_gpus[job] + 0.999) if keeps_its_gpus else low
            if least <= num_left:
                target[job] = least
                num_left -= least
        return target, num_left

    def _grow(self, target: dict[int, int], num_left: int) -> None:
        """Hand out the remaining GPUs by gain in speed per GPU; of equal gains, the earlier job is first."""
        while num_left > 0:
            best: tuple[float, int, int] | None = None  # gain, job, more GPUs
            for job, gpus in target.items():
                low, high = self.range_of(job)
                more = min(gpus, high - gpus)
                if low == high or not 0 < more <= num_left or self._is_settling(job):
                    continue
                gain = self._gain_per_gpu(job, gpus, more)
                if best is None or gain > best[0] + 1e-12:
                    best = (gain, job, more)
            if best is None:
                return
            _, job, more = best
            target[job] += more
            num_left -= more

    def _gain_per_gpu(self, job: int, gpus: int, more: int) -> float:
        """Return the gain in speed, relative to that on the requested GPUs, per additional GPU."""
        requested, scaling = self.sim.requested_gpus[job], self.sim.jobs[job].scaling
        speed: float = (gpus / requested) ** scaling
        faster: float = ((gpus + more) / requested) ** scaling
        return (faster - speed) / more

    def _stop_resized(self, target: dict[int, int]) -> None:
        """Stop running jobs that can double, or must shrink because others wait."""
        sim = self.sim
        for job in [*sim.running]:
            if self._is_rigid(job) or self._is_settling(job) or job not in target:
                continue
            can_double = target[job] >= 2 * sim.held_gpus[job]
            shrinks = target[job] < sim.held_gpus[job]
            if can_double or (shrinks and self.waiting):
                sim.preempt(job, "resized")
                self.waiting[job] = None

    def _start_elastic(self, job: int, gpus: int) -> None:
        """Start a job on this number of GPUs or, if that does not fit, on the first halving that does."""
        low, _ = self.range_of(job)
        while not self._start(job, gpus) and gpus > low:
            gpus = max(low, gpus // 2)
