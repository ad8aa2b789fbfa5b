"""How far predictions were off what was measured: with what earlier tunings taught, without it, beside single trials.

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
    """Median absolute error of predictions that only a trial of the screening stands beside."""
    errors = [abs(one.prediction.speedup / one.speedup - 1) for one in result.screened_alone]
    return median(errors) if errors else None


def error_sentence(result: TuneResult) -> str:
    error, alone = median_error(result), screening_error(result)
    in_trials = ""
    if alone is not None:
        num_alone = len(result.screened_alone)
        num = counted(num_alone, "prediction") if error is None else f"{num_alone} more"
        in_trials = f"by {units.percent(alone)} beside one trial each, whose noise is in it (median of {num})"
    if error is None:
        return f"Predictions were off {in_trials}." if in_trials else "No prediction can be set beside a measurement."
    num_paired = len(result.prediction_errors)
    without = result.prediction_errors_without_history
    learned = f", and {units.percent(median(without))} without what earlier tunings taught" if without else ""
    text = (
        f"Predictions were off by {units.percent(error)} (median absolute error of"
        f" {counted(num_paired, 'prediction')}){learned}" + (f"; {in_trials}." if in_trials else ".")
    )
    inside, num_paired = in_interval(result)
    lie = "lies" if num_paired == 1 else "lie"
    held = f"{inside} of {counted(num_paired, 'measured value')} {lie} in the predicted interval"
    behind = max(said.num_behind for said, _ in result.predicted_and_measured)
    if not behind:
        return f"{text} {held}."
    return (
        f"{text} {held}, which is to hold {units.percent(NOMINAL)}, going by {counted(behind, 'earlier prediction')}."
    )


def in_interval(result: TuneResult) -> tuple[int, int]:
    """How many measured speedups lie in the interval that was predicted, and of how many."""
    inside = [said.low <= speedup <= said.high for said, speedup in result.predicted_and_measured]
    return sum(inside), len(inside)
