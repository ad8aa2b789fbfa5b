"""Say what a trial costs: how long it takes to start, to measure and to end, and where the time of the start goes.

In: the results of trials. Out: sentences and rows of text. Times are medians over the trials that completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from flatout.records.start_costs import StartCosts
from flatout.records.trial import TrialResult
from flatout.units import percent, seconds

MIN_SHOWN_SHARE = 0.02  # of the start: smaller parts are summed up
MIN_TOLD_SHARE = 0.1  # of the start: an evaluation that takes less is not worth a hint

_PARTS = {
    "launch_s": "launching the ranks",
    "import_s": "importing torch",
    "setup_s": "the script's own setup",
    "group_s": "making process groups",
    "evaluation_s": "evaluating before the training",
    "first_batch_s": "waiting for the first batch",
    "first_step_s": "the first step",
    "warmup_s": "further warm-up steps",
}


def trial_line(results: Sequence[TrialResult]) -> str | None:
    """Return e.g. `a trial: 21.0 s to start, 4.00 s to measure, 1.20 s to end`; None if no trial says."""
    timed = [result for result in results if result.is_complete and result.start_s is not None]
    if not timed:
        return None
    start_s = median(result.start_s for result in timed if result.start_s is not None)
    measured_s = median(sum(result.step_s) for result in timed)
    words = f"a trial: {seconds(start_s)} to start, {seconds(measured_s)} to measure"
    ends_s = [costs.end_s for costs in _costs(timed) if costs.end_s is not None]
    return f"{words}, {seconds(median(ends_s))} to end" if ends_s else words


def start_parts(results: Sequence[TrialResult]) -> dict[str, float]:
    """Return the seconds of each part of a start, the longest first, with the small parts summed up; empty: unknown."""
    costs = _costs(results)
    if not costs:
        return {}
    parts = {title: median(getattr(of_trial, name) for of_trial in costs) for name, title in _PARTS.items()}
    total_s = sum(parts.values())
    shown = {title: part_s for title, part_s in parts.items() if part_s >= MIN_SHOWN_SHARE * total_s}
    ordered = dict(sorted(shown.items(), key=lambda part: -part[1]))
    rest_s = total_s - sum(shown.values())
    return ordered | ({"other": rest_s} if rest_s > 0 else {})


def start_line(results: Sequence[TrialResult]) -> str | None:
    """Return where the time of a start goes, in one sentence; None: unknown."""
    parts = start_parts(results)
    if not parts:
        return None
    words = f"of its start: {', '.join(f'{seconds(part_s)} {title}' for title, part_s in parts.items())}"
    compiled_s = [costs.compilation_s for costs in _costs(results) if costs.compilation_s is not None]
    return f"{words}; {seconds(median(compiled_s))} of it is compilation" if compiled_s else words


def start_hint(results: Sequence[TrialResult]) -> str | None:
    """Return what the user can do to shorten every trial; None if nothing is known to help."""
    costs = _costs(results)
    if not costs:
        return None
    start_s = median(of_trial.start_s for of_trial in costs)
    evaluation_s = median(of_trial.evaluation_s for of_trial in costs)
    if evaluation_s < MIN_TOLD_SHARE * start_s:
        return None
    return (
        f"an evaluation before the training takes {seconds(evaluation_s)} of each trial"
        f" ({percent(evaluation_s / start_s)} of its start). It is not skipped, as it may draw random numbers: if the"
        " script has an option to skip it, add that to the command"
    )


def _costs(results: Sequence[TrialResult]) -> list[StartCosts]:
    return [result.start_costs for result in results if result.is_complete and result.start_costs is not None]
