"""Join the steps of all ranks to the steps of the job. In: heartbeats, again and again. Out: each step once, in order.

The heartbeat keeps the last 128 steps: if it is read too seldom, the steps between are skipped. Another attempt begins
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from flatout.keep.heartbeats import HeartbeatSample, StepTimes


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the job. Times are without checkpoints and evaluations."""

    step: int
    duration_s: float  # median over ranks
    data_s: Mapping[int, float]  # by rank


class JobSteps:
    def __init__(self) -> None:
        self._last = 0
        self._names: tuple[str, ...] = ()

    def new_steps(self, samples: Sequence[HeartbeatSample]) -> list[JobStep]:
        """Return the steps that all ranks have made since the last call."""
        names = tuple(sample.name for sample in samples)
        if names != self._names:
            self._names, self._last = names, 0
        times = [{step.step: step for step in sample.recent} for sample in samples]
        if not times:
            return []
        complete = sorted(set.intersection(*(set(of_rank) for of_rank in times)))
        steps = []
        for step in complete:
            if step > self._last:
                of_ranks = {sample.rank or 0: of_rank[step] for sample, of_rank in zip(samples, times, strict=True)}
                steps.append(_joined(step, of_ranks))
        self._last = complete[-1] if complete else self._last
        return steps


def _joined(step: int, of_ranks: Mapping[int, StepTimes]) -> JobStep:
    return JobStep(
        step=step,
        duration_s=median(times.duration_s - times.away_s for times in of_ranks.values()),
        data_s={rank: times.data_s for rank, times in of_ranks.items()},
    )
