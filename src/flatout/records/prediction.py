"""What a change is expected to bring before it is measured, and what was measured afterwards."""

from __future__ import annotations

import msgspec

NOMINAL = 0.9  # of measured speedups, that the intervals of predictions are to hold


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A step's time now over its time with the change: above 1 is faster. No claim: only a trial makes one."""

    change: str  # its name
    family: str
    speedup: float
    low: float  # it is expected to lie between these
    high: float
    how: str  # one sentence: what the replay did
    assumptions: tuple[str, ...] = ()
    bound: float | None = None  # the most that the findings allow; the speedup is never above it
    correction: float = 1.0  # by calibration, already in the three
    model: tuple[float, float, float] | None = None  # speedup, low and high as replayed, before anything was learned
    num_behind: int = 0  # measured predictions that the interval's width is learned from
    origin: str = "predicted"


class NoPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing can be said beyond the bound from the findings."""

    change: str
    family: str
    reason: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction and what a trial measured: one line of the history."""

    family: str
    change: str
    predicted: float  # speedup as replayed, before any correction
    measured: float
    machine: str
    date: str  # ISO 8601; outcomes of one date are of one tuning
    low: float | None = None  # the interval as replayed; older lines have none
    high: float | None = None
    sd: float = 0.0  # of log(measured): its own noise, by the noise floor; less of several pairs
