"""SJF and QSSF: the shortest job first by its predicted duration, or by predicted GPU-time; no job is stopped.

Rule: of the waiting jobs that fit, the one with the least predicted duration (`sjf`) or predicted duration times GPUs
(`qssf`) starts.
Source: QSSF, quasi-shortest-service-first: Hu et al., Characterization and prediction of deep learning workloads in
large-scale GPU datacenters, SC'21 (Helios).
When wrong: with poor predictions; a long job that started keeps its GPUs; wide and long jobs can wait forever while
short ones keep coming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import Durations
from flatout.schedule.levels import MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation


class ShortestFirst(MultilevelPolicy):
    name: ClassVar[str] = "sjf"
    summary: ClassVar[str] = "shortest predicted duration first; running jobs are not stopped"
    preempts: ClassVar[bool] = False

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.predicted: list[float] = [0.0] * len(sim.jobs)

    def submitted(self, job: int) -> None:
        if not self.predicted[job]:
            self.predicted[job] = self.durations.mean(job)
        super().submitted(job)

    def ended(self, job: int) -> None:
        self.durations.ended(job, self.sim.held_s[job], self.predicted[job])
        super().ended(job)

    def level(self, job: int) -> int:
        return 0

    def order(self, job: int) -> float:
        return self.predicted[job]

    def notes(self) -> tuple[str, ...]:
        return (self.durations.error_text(),)


class ShortestFirstOracle(ShortestFirst):
    name: ClassVar[str] = "sjf-oracle"
    summary: ClassVar[str] = "the same, with all durations known"
    is_oracle: ClassVar[bool] = True

    def order(self, job: int) -> float:
        return self.sim.work_left_s[job]

    def notes(self) -> tuple[str, ...]:
        return ("knows how long each job will run",)


class QuasiShortestService(ShortestFirst):
    name: ClassVar[str] = "qssf"
    summary: ClassVar[str] = "least predicted GPU-time first; running jobs are not stopped (Helios)"

    def order(self, job: int) -> float:
        return self.predicted[job] * self.sim.requested_gpus[job]
