"""Fit latency and bandwidth to a collective's curve: seconds = latency + wire bytes / bandwidth.

Logarithms are fitted, so that a kilobyte counts as much as a gigabyte. The fit is robust: a size at which the library
changes its algorithm, or which was disturbed, has little weight. The measured curve is kept too, because it shows
details that a line cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_SIZES = 4


def fitted(wire_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float] | None:
    """Return latency in seconds, bandwidth in bytes/s, and the median relative error; None for fewer than 4 sizes.

    `wire_bytes` are those of bus bandwidth: the size times the collective's factor.
    """
    if len(wire_bytes) < MIN_SIZES:
        return None
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    work, took = np.asarray(wire_bytes, float), np.asarray(seconds, float)

    def off(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        latency, pace = np.exp(logs)
        return np.asarray(np.log((latency + work * pace) / took))

    start = np.log([float(took.min()), float(np.median((took / work)[np.argsort(work)[-3:]]))])
    found = least_squares(off, start, loss="soft_l1", f_scale=0.1)
    latency, pace = np.exp(found.x)
    return float(latency), float(1 / pace), float(np.median(np.abs(np.exp(off(found.x)) - 1)))
