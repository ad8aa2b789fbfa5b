"""The expected effect of a change, and the measured effect."""

from __future__ import annotations

import msgspec

NOMINAL = 0.9  # share of measured speedups that prediction intervals should contain


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted ratio of step times without and with a change: above 1 is faster. Only a trial makes a claim."""

    change: str  # name of the change
    family: str
    speedup: float
    low: float  # the interval that is expected to contain it
    high: float
    how: str  # one sentence: how the replay was edited
    assumptions: tuple[str, ...] = ()
    bound: float | None = None  # maximum that the findings allow; the speedup never exceeds it
    correction: float = 1.0  # by calibration, included in speedup, low and high
    model: tuple[float, float, float] | None = None  # speedup, low and high as replayed, before calibration
    num_behind: int = 0  # measured predictions behind the interval's width
    origin: str = "predicted"


class NoPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A change for which only the bound from the findings is known, and no prediction is possible."""

    change: str
    family: str
    reason: str


class PredictionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction and the result of a trial: one line of the history."""

    family: str
    change: str
    predicted: float  # speedup as replayed, before correction
    measured: float
    machine: str
    date: str  # ISO 8601; records with the same date are from one tuning
    low: float | None = None  # the interval as replayed; missing in older lines
    high: float | None = None
    sd: float = 0.0  # of log(measured): its noise, from the noise floor; smaller with several pairs
