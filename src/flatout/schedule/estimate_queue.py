"""A queue in which the first job with an estimate of at most so many seconds is found without looking at each."""

from __future__ import annotations

import math

_BLOCK = 64


class EstimateQueue:
    """Jobs in order of arrival, each with a position and an estimate."""

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.positions: list[int] = []
        self.estimates: list[float] = []  # infinity where the job has left
        self.least: list[float] = []  # of each block
        self._first = 0  # block; those before it are empty
        self._place: dict[int, int] = {}
        self.size = 0

    def append(self, job: int, position: int, estimate: float) -> None:
        place = len(self.jobs)
        if place % _BLOCK == 0:
            self.least.append(math.inf)
        self.jobs.append(job)
        self.positions.append(position)
        self.estimates.append(estimate)
        self._place[job] = place
        self.size += 1
        self.least[-1] = min(self.least[-1], estimate)

    def remove(self, job: int) -> None:
        place = self._place.pop(job)
        self.size -= 1
        self.estimates[place] = math.inf
        block = place // _BLOCK
        self.least[block] = min(self.estimates[block * _BLOCK : (block + 1) * _BLOCK])
        while self._first < len(self.least) - 1 and self.least[self._first] == math.inf:
            self._first += 1

    def find(self, longest: float) -> int:
        """The place of the first job with at most that finite estimate; -1 where there is none."""
        least, estimates = self.least, self.estimates
        for block in range(self._first, len(least)):
            if least[block] <= longest:
                start = block * _BLOCK
                for place in range(start, min(start + _BLOCK, len(estimates))):
                    if estimates[place] <= longest:
                        return place
        return -1
