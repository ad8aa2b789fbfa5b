"""Goodput-elastic: elastic jobs get as many GPUs as pay, and shrink so that others start.

Rule: every ten minutes in which something changed, all jobs in order of submission get their least number of GPUs; what
is left goes, doubling by doubling, to the job whose speed gains most for a GPU. A job is resized (its restart cost and
lost work charged) at most once an hour, and only where GPUs are short or it can double. Jobs without a range are rigid.
Source: Qiao et al., Pollux, OSDI'21; Subramanya et al., Sia, SOSP'23. The speed is (GPUs / asked) ** scaling;
statistical efficiency is to be contained in `scaling`, as histories have no gradient noise.
When wrong: where `scaling` is guessed; where jobs don't keep their batch size or can't restart on other numbers of
GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

ROUND_S = 600.0
SETTLED_S = 3600.0


class GoodputElastic(Policy):
    name: ClassVar[str] = "goodput"
    summary: ClassVar[str] = "elastic jobs grow and shrink to where GPUs gain most (Pollux, Sia)"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.waiting: dict[int, None] = {}
        self._next_round = -1e300
        self._has_changed = False

    def submitted(self, job: int) -> None:
        self.waiting[job] = None
        self._has_changed = True

    def stopped(self, job: int) -> None:
        self.submitted(job)

    def ended(self, job: int) -> None:
        self._has_changed = True

    def range_of(self, job: int) -> tuple[int, int]:
        given = self.sim.jobs[job]
        if given.min_gpus is None or self.sim.shapes[self.sim.shape[job]].milli != WHOLE:
            return given.num_gpus, given.num_gpus
        low = min(given.min_gpus, given.num_gpus)
        return low, max(low, given.max_gpus or given.num_gpus)

    def decide(self) -> None:
        sim = self.sim
        if self._has_changed and sim.now >= self._next_round:
            self._has_changed = False
            self._round()
            self._next_round = sim.now + ROUND_S
            if self.waiting:
                sim.wake(self._next_round)
        self._fill()

    def _fill(self) -> None:
        """Start what fits as it is asked for, or with the least number of GPUs; in order, others may pass."""
        sim, blocked = self.sim, set[int]()
        if not sim.pool.num_free and not sim.pool.partial:
            return
        for job in [*self.waiting]:
            if sim.shape[job] in blocked:
                continue
            low, _ = self.range_of(job)
            if not (self._start(job, sim.gpus[job]) or (low < sim.gpus[job] and self._start(job, low))):
                blocked.add(sim.shape[job])

    def _start(self, job: int, gpus: int) -> bool:
        _, milli, allowed, _ = self.sim.shapes[self.sim.shape[job]]
        pool = self.sim.pool
        place: Placement | None = pool.take(gpus, allowed) if milli == WHOLE else pool.take_share(milli, allowed)
        if place is None:
            return False
        self.sim.start_at(job, place, gpus=float(gpus) if milli == WHOLE else None)
        del self.waiting[job]
        return True

    def _round(self) -> None:
        sim = self.sim
        jobs = sorted([*sim.running, *self.waiting], key=lambda job: (sim.submit[job], job))
        if all(low == high for low, high in map(self.range_of, jobs)):
            return
        size: dict[int, int] = {}
        room = sum(sim.pool.capacity) - sum(
            count for node, count in enumerate(sim.pool.capacity) if sim.pool.down >> node & 1
        )
        for job in jobs:
            low, high = self.range_of(job)
            fixed = low == high or (job in sim.running and sim.now - sim.started[job] < SETTLED_S)
            least = int(sim.size[job] + 0.999) if fixed and job in sim.running else low
            if least <= room:
                size[job] = least
                room -= least
        self._grow(size, room)
        for job in [*sim.running]:
            low, high = self.range_of(job)
            if low == high or sim.now - sim.started[job] < SETTLED_S or job not in size:
                continue
            now, then = sim.size[job], size[job]
            if then >= 2 * now or (then < now and self.waiting):
                sim.preempt(job, "resized")
                self.waiting[job] = None
        for job in jobs:
            if job in self.waiting and job in size and not self._start(job, size[job]):
                low, _ = self.range_of(job)
                while size[job] > low:
                    size[job] = max(low, size[job] // 2)
                    if self._start(job, size[job]):
                        break

    def _grow(self, size: dict[int, int], room: int) -> None:
        """Hand out the rest by the gain in speed for a GPU; equal gains to the earlier job."""
        sim = self.sim
        while room > 0:
            best: tuple[float, int, int] | None = None
            for job, gpus in size.items():
                low, high = self.range_of(job)
                more = min(gpus, high - gpus)
                is_settling = job in sim.running and sim.now - sim.started[job] < SETTLED_S
                if low == high or more <= 0 or more > room or is_settling:
                    continue
                asked, scaling = sim.gpus[job], sim.jobs[job].scaling
                gain = (((gpus + more) / asked) ** scaling - (gpus / asked) ** scaling) / more
                if best is None or gain > best[0] + 1e-12:
                    best = (gain, job, more)
            if best is None:
                return
            _, job, more = best
            size[job] += more
            room -= more
