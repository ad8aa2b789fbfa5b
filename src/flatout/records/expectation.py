"""What a tuning says about the step time of the job with its changes, and whether a running job confirms it."""

from __future__ import annotations

from typing import Literal

import msgspec

# `not_as_tuned`: slower than the tuning says, but not than without the changes. `regression`: slower than without them.
ExpectationOutcome = Literal["as_tuned", "not_as_tuned", "regression"]


class StepExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step with the changes, from a tuning's measurements, and the scale on which they hold."""

    low_s: float  # the ends of the tuning's interval
    high_s: float
    without_s: float  # per step without the changes
    num_ranks: int | None = None
    num_nodes: int | None = None
    device: str | None = None


class ObservedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The first steps of a job after its warm-up, compared with the expectation."""

    outcome: ExpectationOutcome
    step_s: float  # median over windows of steps
    low_s: float  # 95 % interval of that median
    high_s: float
    num_steps: int
