"""Heterogeneity-aware: a linear programme decides what share of time each job gets on each type of GPU.

Rule: in each one-hour round, shares X[kind of job, type] of time maximise the least speed-up of any kind over an equal
share of all types, and then the sum, within the capacity of each type, with each job on one type at a time. Jobs with
the largest (share due - share received) run in the round, on the type where they are owed most; others are stopped when
the round begins. Between rounds, free GPUs go to waiting jobs in order.
Source: Narayanan et al., Gavel, OSDI'20 (max-min fairness), with SciPy's HiGHS.
When wrong: with one type of GPU it is round-robin, and restarts cost more than it gains; jobs that state no speeds
count as equally fast on all types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from flatout.schedule.engine import WAITING
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement, nodes_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

ROUND_S = 3600.0
_LEAST_SHARE = 1e-6  # smaller shares of time are rounding errors of the solver
_WEIGHT_OF_SUM = 1e-4  # of the sum of speed-ups, relative to the least speed-up
Kind = tuple[int, tuple[float, ...]]  # GPUs, and the speed on each type (0: not allowed there)
Floats = npt.NDArray[np.float64]


class Heterogeneity(Policy):
    name: ClassVar[str] = "heterogeneity"
    summary: ClassVar[str] = "shares of GPU types by a linear programme, in rounds of an hour (Gavel)"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        nodes = sim.cluster.nodes
        self.types = list(dict.fromkeys(node.gpu_type for node in nodes))
        self.capacity = [sum(node.num_gpus for node in nodes if node.gpu_type == name) for name in self.types]
        self.masks = [sim.cluster.mask_of_types((name,)) for name in self.types]
        self.waiting: dict[int, None] = {}
        self.received: dict[int, list[float]] = {}  # seconds on each type, by job
        self._kinds: dict[int, Kind] = {}
        self._next_round = -np.inf

    def kind(self, job: int) -> Kind:
        kind = self._kinds.get(job)
        if kind is None:
            speeds = dict(self.sim.jobs[job].type_speeds)
            allowed = self.sim.shapes[self.sim.shape[job]].allowed
            speed_on_types = []
            for name, mask in zip(self.types, self.masks, strict=True):
                speed_on_types.append(speeds.get(name, 1.0) if allowed & mask else 0.0)
            kind = (self.sim.requested_gpus[job], tuple(speed_on_types))
            self._kinds[job] = kind
        return kind

    def submitted(self, job: int) -> None:
        self.waiting[job] = None
        self.received.setdefault(job, [0.0] * len(self.types))

    def stopped(self, job: int) -> None:
        self._receive(job)
        self.submitted(job)

    def _type_of(self, job: int) -> int:
        """Return the type of the GPUs that a job holds, or held when it was just stopped."""
        sim = self.sim
        node = nodes_of(sim.placement[job], sim.held_gpus[job])[0][0]
        return self.types.index(sim.cluster.nodes[node].gpu_type)

    def _receive(self, job: int) -> None:
        """Add the time that a job has had on its GPU type until now."""
        held_s = self.sim.now - self.sim.started_s[job]
        self.received[job][self._type_of(job)] += min(ROUND_S, held_s)

    def decide(self) -> None:
        sim = self.sim
        if sim.now >= self._next_round and self.waiting:
            self._round()
            self._next_round = sim.now + ROUND_S
            sim.wake(self._next_round)
        self._fill()

    def _fill(self) -> None:
        """Start waiting jobs where they fit, in order, each on its fastest type."""
        sim, blocked = self.sim, set[int]()
        if not sim.pool.num_free and not sim.pool.partial:
            return
        for job in [*self.waiting]:
            if sim.shape[job] not in blocked and not self._start_on_fastest(job):
                blocked.add(sim.shape[job])

    def _start_on_fastest(self, job: int) -> bool:
        _, speeds = self.kind(job)
        fastest_first = sorted(range(len(self.types)), key=lambda gpu_type: -speeds[gpu_type])
        return any(speeds[gpu_type] > 0 and self._start_on(job, gpu_type) for gpu_type in fastest_first)

    def _start_on(self, job: int, gpu_type: int) -> bool:
        gpus, milli, allowed, _ = self.sim.shapes[self.sim.shape[job]]
        mask = allowed & self.masks[gpu_type]
        pool = self.sim.pool
        placement: Placement | None = pool.take(gpus, mask) if milli == WHOLE else pool.take_share(milli, mask)
        if placement is None:
            return False
        self.sim.start_at(job, placement)
        del self.waiting[job]
        return True

    def _round(self) -> None:
        """Give each type's GPUs to the jobs that are owed most time on it, and stop the others."""
        sim = self.sim
        target = self._target_types([*sim.running, *self.waiting])
        for job in [*sim.running]:
            if target.get(job) != self._type_of(job):
                self._receive(job)
                sim.preempt(job)
                self.waiting[job] = None
        for job, gpu_type in target.items():
            if sim.status[job] == WAITING:
                self._start_on(job, gpu_type)

    def _target_types(self, jobs: list[int]) -> dict[int, int]:
        """Return the GPU type of each job that is to run in this round."""
        sim = self.sim
        shares = self.solve([self.kind(job) for job in jobs])
        owed = []  # (time due / time received), then the earlier job first
        for job in jobs:
            age_s = max(ROUND_S, sim.now - sim.submit_s[job])
            for gpu_type, share in enumerate(shares[self.kind(job)]):
                if share > _LEAST_SHARE:
                    received_share = self.received[job][gpu_type] / age_s
                    owed.append((share / (received_share + 1e-3), -sim.submit_s[job], -job, gpu_type))
        owed.sort(reverse=True)
        num_left, target = list(self.capacity), dict[int, int]()
        for _, _, negative_job, gpu_type in owed:
            job = -negative_job
            if job not in target and num_left[gpu_type] >= sim.requested_gpus[job]:
                target[job] = gpu_type
                num_left[gpu_type] -= sim.requested_gpus[job]
        return target

    def solve(self, kinds: list[Kind]) -> dict[Kind, list[float]]:
        """Return each kind's share of time on each GPU type; `kinds` has one entry per job.

        The variables are the shares, by kind and type, and finally the least speed-up of any kind.
        """
        from scipy.optimize import linprog  # type: ignore[import-untyped]

        counts: dict[Kind, int] = {}
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
        num_types = len(self.types)
        num_variables = len(counts) * num_types + 1
        shares_of = {kind: slice(n * num_types, (n + 1) * num_types) for n, kind in enumerate(counts)}

        def row() -> Floats:
            return np.zeros(num_variables)

        rows, limits = [], []
        for gpu_type, capacity in enumerate(self.capacity):
            within_capacity = row()
            for kind, shares in shares_of.items():
                gpus, _ = kind
                within_capacity[shares.start + gpu_type] = counts[kind] * gpus
            rows.append(within_capacity)
            limits.append(float(capacity))
        for (_, speeds), shares in shares_of.items():
            on_one_type_at_a_time, at_least = row(), row()
            on_one_type_at_a_time[shares] = 1
            fair_speed = self._fair_speed(speeds)
            at_least[shares] = [-speed / max(fair_speed, 1e-9) for speed in speeds]
            at_least[-1] = 1
            rows += [on_one_type_at_a_time, at_least]
            limits += [1.0, 0.0]
        goal = row()
        goal[-1] = -1
        for kind, shares in shares_of.items():
            _, speeds = kind
            goal[shares] = [-_WEIGHT_OF_SUM * speed * counts[kind] / len(kinds) for speed in speeds]
        bounds: list[tuple[int, int | None]] = []
        for _, speeds in shares_of:
            bounds += [(0, 1 if speed > 0 else 0) for speed in speeds]
        bounds.append((0, None))
        solution = linprog(goal, A_ub=np.array(rows), b_ub=np.array(limits), bounds=bounds, method="highs")
        values = np.full(num_variables, 1 / num_types) if solution.x is None else solution.x
        return {kind: [float(value) for value in values[shares]] for kind, shares in shares_of.items()}

    def _fair_speed(self, speeds: tuple[float, ...]) -> float:
        """Return the speed that a kind of job has with an equal share of all GPUs."""
        total = sum(speed * gpus for speed, gpus in zip(speeds, self.capacity, strict=True))
        return total / sum(self.capacity)
