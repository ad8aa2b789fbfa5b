"""A queue that finds the first job whose estimate is at most a given time without examining every job."""

from __future__ import annotations

import math

_BLOCK = 64


class EstimateQueue:
    """Jobs in order of arrival, each with a position and a finite estimate, held in parallel lists."""

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.positions: list[int] = []
        self.num_waiting = 0
        self.first = 0  # index of the first job that waits
        self._estimates: list[float] = []  # infinity if the job has left the queue
        self._least: list[float] = []  # the least estimate of each block
        self._index: dict[int, int] = {}

    def append(self, job: int, position: int, estimate: float) -> None:
        index = len(self.jobs)
        if index % _BLOCK == 0:
            self._least.append(math.inf)
        self.jobs.append(job)
        self.positions.append(position)
        self._estimates.append(estimate)
        self._index[job] = index
        self.num_waiting += 1
        self._least[-1] = min(self._least[-1], estimate)

    def remove(self, job: int) -> None:
        index = self._index.pop(job)
        self.num_waiting -= 1
        estimates = self._estimates
        estimates[index] = math.inf
        block = index // _BLOCK
        self._least[block] = min(estimates[block * _BLOCK : (block + 1) * _BLOCK])
        first = self.first
        while first < len(estimates) and estimates[first] == math.inf:
            first += 1
        self.first = first

    def first_within(self, longest: float) -> int:
        """Return the index of the first job whose estimate is at most `longest`; -1 if there is none."""
        least, estimates = self._least, self._estimates
        for block in range(self.first // _BLOCK, len(least)):
            if least[block] <= longest:
                start = max(self.first, block * _BLOCK)
                end = min((block + 1) * _BLOCK, len(estimates))
                for index in range(start, end):
                    if estimates[index] <= longest:
                        return index
        return -1
