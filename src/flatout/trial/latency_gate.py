"""Check that the calls of a script that only infers are within the user's limit of latency.

In: the trials of one set of changes, and the limit. Out: a `GateResult`. A call lasts until the next one begins, so
what the script does between two calls is part of it. The percentile is of the calls of all trials, and never an
interpolation: it is the time of a call, of the longest one where there are too few.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.records.call_limit import CallLimit
from flatout.records.trial import TrialResult
from flatout.trial.gates import GateResult
from flatout.units import seconds


def call_percentile_s(trials: Sequence[TrialResult], percentile: float) -> float | None:
    """Return the percentile of the calls' times; None without a call."""
    calls_s = [step_s for trial in trials if trial.is_complete for step_s in trial.step_s]
    if not calls_s:
        return None
    return float(np.percentile(calls_s, percentile, method="higher"))


def check_latency(trials: Sequence[TrialResult], limit: CallLimit) -> GateResult:
    """Compare the percentile of all calls with the limit."""
    num_calls = sum(len(trial.step_s) for trial in trials if trial.is_complete)
    found_s = call_percentile_s(trials, limit.percentile)
    if found_s is None:
        return GateResult(is_passed=False, reason="no call of its model was measured", outcome="over the limit")
    words = f"p{limit.percentile:g} of {num_calls} calls is {seconds(found_s)}; the limit is {seconds(limit.most_s)}"
    return GateResult(is_passed=found_s <= limit.most_s, reason=words, outcome="over the limit")
