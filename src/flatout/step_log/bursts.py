"""The waits of a starved loader whose workers deliver together: one long wait, then batches that are ready.

In: the step times of a job's ranks with their waits for batches, and the number of workers. Out: the same times with
the waits of each burst spread over its steps. With N workers of equal speed, at least one step in N waits long, and
that is what a regular step of this loader costs: no stall. A wait that comes less often, as for a slow file now and
then, stays where it is, and so does what exceeds twice the usual long wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_BURSTS = 3  # long waits; fewer may be single late batches
MAX_PERIOD = 1.25  # times the number of workers: steps from a long wait to the next, on average
MAX_LONG_SHARE = 0.8  # of the steps; where nearly all steps wait, there is nothing to spread
MOST_OF_A_WAIT = 2.0  # times the usual long wait: what is longer counts as a stall
IS_LONG = 0.5  # of the usual long wait

Times = NDArray[np.float64]


def without_bursts(
    duration_s: Times, loader_s: Times, started_s: Times, is_ordinary: NDArray[np.bool_], num_workers: int
) -> tuple[Times, Times]:
    """Return the step times and the waits for batches, ranks x steps, with those of bursts spread over their steps.

    `started_s` is the part of the waits in which a loader starts, which is in no burst. In a job with collectives, all
    ranks wait for the one whose batch is late; a rank that does not keeps its times.
    """
    evened_s, waits_s = duration_s.copy(), loader_s.copy()
    steady_s = np.maximum(loader_s - started_s, 0.0)[:, is_ordinary]
    longest_s = spread_bursts(steady_s.max(axis=0), num_workers)
    if longest_s is None:
        return evened_s, waits_s
    for row, of_rank in enumerate(steady_s):
        times_s = duration_s[row, is_ordinary]
        if np.nanstd(times_s + longest_s) < np.nanstd(times_s):
            evened_s[row, is_ordinary] = times_s + longest_s
        own_s = spread_bursts(of_rank, num_workers)
        if own_s is not None:
            waits_s[row, is_ordinary] += own_s
    return evened_s, waits_s


def spread_bursts(waits_s: Times, num_workers: int) -> Times | None:
    """Return how much longer each step is with the waits spread over the bursts; None if there are no bursts.

    `waits_s` are those of one rank, or the longest of all ranks, in consecutive ordinary steps. The sum is 0.
    """
    if num_workers < 2 or len(waits_s) < MIN_BURSTS:
        return None
    usual_s = float(np.quantile(waits_s, 1 - 0.5 / num_workers))
    is_long = waits_s > IS_LONG * usual_s
    num_long = int(is_long.sum())
    is_often = num_long * MAX_PERIOD * num_workers >= len(waits_s)
    if num_long < MIN_BURSTS or not is_often or is_long.mean() > MAX_LONG_SHARE:
        return None
    counted_s = np.minimum(waits_s, MOST_OF_A_WAIT * usual_s)
    change_s = _moving_mean(counted_s, num_workers) - counted_s
    return np.asarray(change_s - change_s.mean())  # at the ends, a burst is cut


def _moving_mean(values: Times, num: int) -> Times:
    """Return the mean of the `num` values around each value, of fewer at the ends."""
    num = min(num, len(values))
    window = np.ones(num)
    sums = np.convolve(values, window, mode="same")
    counts = np.convolve(np.ones(len(values)), window, mode="same")
    return np.asarray(sums / counts)
