"""`--latency 'p99<50ms'`: read it, refuse jobs for which it means nothing, and say what the calls take at the end.

In: the text of the option, and the trials of the unchanged job. Out: a `CallLimit`, and notes. Raises UsageError and
InputError. `trial/latency_gate.py` judges the trials of candidates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flatout.errors import InputError, UsageError
from flatout.records.call_limit import CallLimit
from flatout.records.stop_rule import StopRule
from flatout.records.trial import TrialResult
from flatout.trial.latency_gate import call_percentile_s, check_latency
from flatout.units import seconds

_LIMIT = re.compile(r"p(\d{1,2}(?:\.\d+)?)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s)")
_MOST_CALLS = 1000
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_call_limit(text: str | None) -> CallLimit | None:
    """Read `p99<50ms`; None without a limit."""
    if text is None:
        return None
    match = _LIMIT.fullmatch(text.strip())
    percentile, most_s = (float(match[1]), float(match[2]) * _SECONDS[match[3]]) if match is not None else (0.0, 0.0)
    if percentile <= 0 or most_s <= 0:
        raise UsageError(
            f"`--latency` must limit a percentile of the calls, such as p99<50ms, but got {text}",
            hint="units are us, ms and s",
        )
    return CallLimit(percentile=percentile, most_s=most_s, text=text.strip())


def check_job(first: TrialResult, limit: CallLimit | None) -> None:
    """Raise InputError if the steps of the job are not calls whose latency is known."""
    if limit is None:
        return
    if not first.model_outputs:
        raise InputError(
            "`--latency` limits the calls of a script that only infers, but none was seen without gradients",
            hint="leave --latency out",
        )
    if first.has_overlapping_calls:
        raise InputError(
            "`--latency` limits calls one after another, but several threads of the script call the model at once",
            hint="leave --latency out, or tune the server with flatout tune --serve",
        )


def check_unchanged(baselines: Sequence[TrialResult], limit: CallLimit | None) -> None:
    """Raise InputError if the unchanged job is over the limit: a gain over that would not be one within it."""
    if limit is None:
        return
    gate = check_latency(baselines, limit)
    if not gate.is_passed:
        raise InputError(
            f"the unchanged job is over the limit of latency: {gate.reason}",
            hint="start from arguments that are within it, such as a batch size of 1, or raise the limit",
        )


def with_latency(rule: StopRule, limit: CallLimit, *, is_candidate: bool) -> StopRule:
    """Return the rule with as many calls as show the percentile; a candidate whose mean is over it ends early."""
    min_steps = max(rule.min_steps, least_calls(limit))
    if not is_candidate:
        return msgspec.structs.replace(rule, min_steps=min_steps)
    abandon_step_s = limit.most_s if rule.abandon_step_s is None else min(rule.abandon_step_s, limit.most_s)
    return msgspec.structs.replace(rule, min_steps=min_steps, abandon_step_s=abandon_step_s)


def least_calls(limit: CallLimit) -> int:
    """Return how many calls a trial needs for one of them to be beyond the percentile."""
    return min(round(100 / (100 - limit.percentile)), _MOST_CALLS)


def latency_note(
    baselines: Sequence[TrialResult], tuned: Sequence[TrialResult], limit: CallLimit | None
) -> tuple[str, ...]:
    """Say what the calls take now, and before."""
    before_s = None if limit is None else call_percentile_s(baselines, limit.percentile)
    if limit is None or before_s is None:
        return ()
    after_s = call_percentile_s(tuned, limit.percentile)
    now = "" if after_s is None else f", and {seconds(after_s)} with the changes"
    return (f"p{limit.percentile:g} of the calls is {seconds(before_s)} unchanged{now}; the limit is {limit.text}",)
