"""The result of a simulation: the log of segments, from which all measures are computed, and when each job ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flatout.schedule.cluster import Cluster
from flatout.schedule.jobs import ClusterJob
from flatout.schedule.pool import Placement


class Segment(NamedTuple):
    """A job on its GPUs. `gpus` is fractional for a share of a GPU; seconds are wall time, not multiplied by GPUs."""

    job: int
    start_s: float
    end_s: float
    gpus: float
    overhead_s: float
    lost_s: float
    idle_s: float
    placement: Placement
    ending: str  # ended, preempted, failed, resized, reclaimed
    speed: float = 1.0  # seconds of the job's own duration per second of work

    @property
    def useful_s(self) -> float:
        return self.end_s - self.start_s - self.overhead_s - self.lost_s - self.idle_s


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The log of one simulation and the end of each job. `finish_s` is indexed by job."""

    policy: str
    jobs: Sequence[ClusterJob]
    cluster: Cluster
    log: list[Segment]
    finish_s: list[float]
    num_failures: int
    notes: tuple[str, ...] = ()
