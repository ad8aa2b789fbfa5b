"""Sentences about what `flatout run --adapt` did to a job, or would do."""

from __future__ import annotations

from flatout.records.watch import Adaptation, LoaderSettings
from flatout.report.phrases import counted
from flatout.units import percent, seconds


def adaptation_sentence(adaptation: Adaptation) -> str:
    """Return the action with its reason, the expected and the measured effect."""
    change = f"from {_settings(adaptation.before)} to {_settings(adaptation.after)}"
    reason = f"ranks wait {percent(adaptation.wait_share)} of the step for batches"
    expected = "its gain is unknown"
    if adaptation.expected_gain is not None:
        expected = f"at most {percent(adaptation.expected_gain)} of the step is gained"
    match adaptation.outcome:
        case "would_change":
            return f"dry run: the loader would go {change} at the next epoch: {reason}; {expected}"
        case "changed":
            return f"the loader goes {change} at the next epoch: {reason}; {expected}"
    steps = f"{seconds(adaptation.before_s)} to {seconds(adaptation.after_s or 0.0)} per step"
    if adaptation.outcome == "kept":
        return f"the loader stays at {_settings(adaptation.after)}: {steps}"
    return f"the loader goes back to {_settings(adaptation.before)} at the next epoch, as it did not pay: {steps}"


def _settings(settings: LoaderSettings) -> str:
    workers = counted(settings.num_workers, "worker")
    batches = "1 batch" if settings.prefetch_factor == 1 else f"{settings.prefetch_factor} batches"
    return f"{workers} with {batches} ahead"
