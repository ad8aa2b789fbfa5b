"""Heterogeneity-aware: which type of GPU each job gets for what share of time, by a linear programme.

Rule: every round of an hour, shares X[kind of job, type] of time maximise the least speed-up of any kind over an equal
share of all types, and then the sum; within the capacity of each type and one place at a time. Jobs with the largest
(share due - share received) run in the round, on the type where they are owed most; others are stopped at its end.
Between rounds, free GPUs go to waiting jobs in order.
Source: Narayanan et al., Gavel, OSDI'20 (max-min fairness), with SciPy's HiGHS.
When wrong: with one type of GPU it is round-robin, and restarts cost more than it gains; speeds that jobs don't state
count as equal on all types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from flatout.schedule.engine import WAITING
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement, nodes_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

ROUND_S = 3600.0
Kind = tuple[int, tuple[float, ...]]  # GPUs, and the speed on each type (0: it may not run there)


class Heterogeneity(Policy):
    name: ClassVar[str] = "heterogeneity"
    summary: ClassVar[str] = "shares of GPU types by a linear programme, in rounds of an hour (Gavel)"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        nodes = sim.cluster.nodes
        self.types = list(dict.fromkeys(node.gpu_type for node in nodes))
        self.capacity = [sum(node.num_gpus for node in nodes if node.gpu_type == name) for name in self.types]
        self.masks = [sum(1 << n for n, node in enumerate(nodes) if node.gpu_type == name) for name in self.types]
        self.waiting: dict[int, None] = {}
        self.received: dict[int, list[float]] = {}
        self._kinds: dict[int, Kind] = {}
        self._shares: dict[Kind, list[float]] = {}
        self._next_round = -np.inf

    def kind(self, job: int) -> Kind:
        found = self._kinds.get(job)
        if found is None:
            given = self.sim.jobs[job]
            speeds = dict(given.type_speeds)
            allowed = self.sim.shapes[self.sim.shape[job]].allowed
            found = self._kinds[job] = (
                self.sim.gpus[job],
                tuple(
                    speeds.get(name, 1.0) if allowed & mask else 0.0
                    for name, mask in zip(self.types, self.masks, strict=True)
                ),
            )
        return found

    def submitted(self, job: int) -> None:
        self.waiting[job] = None
        self.received.setdefault(job, [0.0] * len(self.types))

    def stopped(self, job: int) -> None:
        self._receive(job)
        self.submitted(job)

    def _receive(self, job: int) -> None:
        """Note the time that a job had on its type up to now."""
        sim = self.sim
        node = nodes_of(sim.place[job], sim.size[job])[0][0]
        place = self.types.index(sim.cluster.nodes[node].gpu_type)
        self.received[job][place] += min(ROUND_S, sim.now - sim.started[job])

    def decide(self) -> None:
        sim = self.sim
        if sim.now >= self._next_round and self.waiting:
            self._round()
            self._next_round = sim.now + ROUND_S
            sim.wake(self._next_round)
        if not sim.pool.num_free and not sim.pool.partial:
            return
        blocked: set[int] = set()
        for job in [*self.waiting]:
            if sim.shape[job] in blocked:
                continue
            order = sorted(range(len(self.types)), key=lambda place: -self.kind(job)[1][place])
            for place in order:
                if self.kind(job)[1][place] > 0 and self._start_on(job, place):
                    break
            else:
                blocked.add(sim.shape[job])

    def _start_on(self, job: int, place: int) -> bool:
        gpus, milli, allowed, _ = self.sim.shapes[self.sim.shape[job]]
        mask = allowed & self.masks[place]
        pool = self.sim.pool
        found: Placement | None = pool.take(gpus, mask) if milli == WHOLE else pool.take_share(milli, mask)
        if found is None:
            return False
        self.sim.start_at(job, found)
        del self.waiting[job]
        return True

    def _round(self) -> None:
        sim = self.sim
        active = [*sim.running, *self.waiting]
        self._shares = self.solve([self.kind(job) for job in active])
        owed = []
        for job in active:
            age = max(ROUND_S, sim.now - sim.submit[job])
            for place, share in enumerate(self._shares[self.kind(job)]):
                if share > 1e-6:
                    owed.append((share / (self.received[job][place] / age + 1e-3), -sim.submit[job], -job, place))
        owed.sort(reverse=True)
        room, target = list(self.capacity), dict[int, int]()
        for _, _, negative, place in owed:
            job = -negative
            if job not in target and room[place] >= sim.gpus[job]:
                target[job] = place
                room[place] -= sim.gpus[job]
        for job in [*sim.running]:
            node = nodes_of(sim.place[job], sim.size[job])[0][0]
            if target.get(job) != self.types.index(sim.cluster.nodes[node].gpu_type):
                self._receive(job)
                sim.preempt(job)
                self.waiting[job] = None
        for job, place in target.items():
            if sim.status[job] == WAITING:
                self._start_on(job, place)

    def solve(self, kinds: list[Kind]) -> dict[Kind, list[float]]:
        """The share of time on each type for each kind of job, of which there are as many as it is in `kinds`."""
        from scipy.optimize import linprog  # type: ignore[import-untyped]

        counts: dict[Kind, int] = {}
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
        names, num_types = list(counts), len(self.types)
        size = len(names) * num_types + 1  # the last variable is the least speed-up
        rows, limits = [], []
        for place in range(num_types):
            row = np.zeros(size)
            for number, kind in enumerate(names):
                row[number * num_types + place] = counts[kind] * kind[0]
            rows.append(row)
            limits.append(float(self.capacity[place]))
        for number, kind in enumerate(names):
            once, least = np.zeros(size), np.zeros(size)
            once[number * num_types : (number + 1) * num_types] = 1
            fair = sum(speed * gpus for speed, gpus in zip(kind[1], self.capacity, strict=True)) / sum(self.capacity)
            least[number * num_types : (number + 1) * num_types] = [-speed / max(fair, 1e-9) for speed in kind[1]]
            least[-1] = 1
            rows += [once, least]
            limits += [1.0, 0.0]
        goal = np.zeros(size)
        goal[-1] = -1
        for number, kind in enumerate(names):
            goal[number * num_types : (number + 1) * num_types] = [
                -1e-4 * speed * counts[kind] / len(kinds) for speed in kind[1]
            ]
        bounds = [(0, 1 if kind[1][place] > 0 else 0) for kind in names for place in range(num_types)] + [(0, None)]
        solved = linprog(goal, A_ub=np.array(rows), b_ub=np.array(limits), bounds=bounds, method="highs")
        values = solved.x if solved.x is not None else np.full(size, 1 / num_types)
        return {
            kind: [float(value) for value in values[number * num_types : (number + 1) * num_types]]
            for number, kind in enumerate(names)
        }
