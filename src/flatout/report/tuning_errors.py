"""Compute the errors of predictions: with and without the history of earlier tunings, and against single trials.

In: a `TuneResult`. Out: numbers, and the sentence of the reports.
"""

from __future__ import annotations

from statistics import median

from flatout import units
from flatout.records.prediction import NOMINAL
from flatout.records.tuning import TuneResult
from flatout.report.phrases import counted


def median_error(result: TuneResult) -> float | None:
    errors = result.prediction_errors
    return median(errors) if errors else None


def screening_error(result: TuneResult) -> float | None:
    """Return the median absolute error of the predictions that were measured only in a screening trial."""
    errors = [abs(one.prediction.speedup / one.speedup - 1) for one in result.screened_alone]
    return median(errors) if errors else None


def error_sentence(result: TuneResult) -> str:
    error, alone = median_error(result), screening_error(result)
    in_trials = ""
    if alone is not None:
        num_alone = len(result.screened_alone)
        num = counted(num_alone, "prediction") if error is None else f"{num_alone} more"
        in_trials = f"by {units.percent(alone)} compared with one trial each, whose noise is included (median of {num})"
    if error is None:
        return (
            f"Predictions were off {in_trials}." if in_trials else "No prediction has a measurement to compare it with."
        )
    num_paired = len(result.prediction_errors)
    without = result.prediction_errors_without_history
    learned = f", and {units.percent(median(without))} without the history of earlier tunings" if without else ""
    text = (
        f"Predictions were off by {units.percent(error)} (median absolute error of"
        f" {counted(num_paired, 'prediction')}){learned}" + (f"; {in_trials}." if in_trials else ".")
    )
    inside, num_paired = in_interval(result)
    verb = "is" if num_paired == 1 else "are"
    held = f"{inside} of {counted(num_paired, 'measured value')} {verb} in the predicted interval"
    behind = max(said.num_behind for said, _ in result.predicted_and_measured)
    if not behind:
        return f"{text} {held}."
    history = counted(behind, "earlier prediction")
    return f"{text} {held}, which should hold {units.percent(NOMINAL)}, judging by {history}."


def in_interval(result: TuneResult) -> tuple[int, int]:
    """Return how many measured speedups are in their predicted intervals, and how many were compared."""
    inside = [said.low <= speedup <= said.high for said, speedup in result.predicted_and_measured]
    return sum(inside), len(inside)
