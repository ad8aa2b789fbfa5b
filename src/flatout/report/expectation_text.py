"""Sentences about a running job and the tuning whose changes it runs with."""

from __future__ import annotations

from flatout import units
from flatout.records.expectation import ObservedSteps, StepExpectation
from flatout.report.phrases import counted


def expectation_sentence(observed: ObservedSteps, expectation: StepExpectation) -> str:
    """Return whether the step time is what the tuning measured."""
    step = (
        f"{units.seconds(observed.step_s)} per step ({units.seconds(observed.low_s)} to "
        f"{units.seconds(observed.high_s)}, {observed.num_steps} steps)"
    )
    tuned = f"{units.seconds(expectation.low_s)} to {units.seconds(expectation.high_s)} with the changes"
    without = f"{units.seconds(expectation.without_s)} without them"
    match observed.outcome:
        case "as_tuned":
            return f"as tuned: {step}; the tuning measured {tuned}, {without}"
        case "not_as_tuned":
            return f"the gain that the tuning measured is missing: {step}, but the tuning measured {tuned}, {without}"
        case "regression":
            return f"the changes do not help here: {step}, but the tuning measured {tuned}, {without}"


def other_scale_sentence(
    expectation: StepExpectation, *, num_ranks: int, num_nodes: int | None, device: str | None
) -> str | None:
    """Return why the step times cannot be compared, or None if they can. Unknown nodes and devices are not compared."""
    if expectation.num_ranks is not None and expectation.num_ranks != num_ranks:
        return _other_scale(counted(expectation.num_ranks, "rank"), num_ranks)
    if expectation.num_nodes is not None and num_nodes is not None and expectation.num_nodes != num_nodes:
        return _other_scale(counted(expectation.num_nodes, "node"), num_nodes)
    if expectation.device is not None and device is not None and expectation.device != device:
        return _other_scale(expectation.device, device)
    return None


def _other_scale(tuned: str, here: str | int) -> str:
    return f"the gain of the tuning is not checked: it was measured on {tuned}, not {here}"
