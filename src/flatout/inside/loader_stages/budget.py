"""Decide which batches are timed, so that timing them takes a small share of the time in which batches are made.

The share is counted by what a stage costs in a tight loop. Among other code it costs up to twice as much, so half of a
hundredth is really about one hundredth (`benchmarks/data_profile_hooks.py`).

In: the cost of entering and leaving a stage, measured once in each process, and how many stages a batch had. Out:
whether the next batch is timed. The first batches are always timed.
"""

from __future__ import annotations

import time

from flatout.inside.loader_stages.stopwatch import Stopwatch

MAX_SHARE = 0.005
NUM_FIRST = 4  # batches that are timed whatever it costs: without them nothing is known
_NUM_TRIES = 200
_NUM_ROUNDS = 3


def cost_per_stage_s() -> float:
    """Measure the seconds that it costs to enter and to leave a stage: the least of some rounds."""
    rounds = []
    for _ in range(_NUM_ROUNDS):
        stopwatch = Stopwatch()
        stopwatch.begin("outer")
        began = time.perf_counter()
        for _ in range(_NUM_TRIES):
            stopwatch.runs_here()
            stopwatch.enter("inner")
            stopwatch.leave()
        rounds.append((time.perf_counter() - began) / _NUM_TRIES)
        stopwatch.finish()
    return min(rounds)


class Budget:
    def __init__(self, cost_s: float) -> None:
        """`cost_s`: the seconds that a stage costs."""
        self._cost_s = cost_s
        self._num_batches = 0
        self.spent_s = 0.0

    def allows(self, elapsed_s: float) -> bool:
        """Whether the next batch may be timed, `elapsed_s` after the first one began."""
        return self._num_batches < NUM_FIRST or self.spent_s <= MAX_SHARE * elapsed_s

    def add(self, num_stages: int, other_s: float) -> None:
        """Count a timed batch: `num_stages` stages, and `other_s` for all that is done once per batch."""
        self._num_batches += 1
        self.spent_s += num_stages * self._cost_s + other_s
