"""The rule by which a trial's job stops itself, and the reasons for which a trial can stop.

`tune/trial_length.py` chooses the rule; `inside/phases/stop.py` follows it in the job.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.errors import UsageError

# `enough`: the mean step is known as precisely as the rule asks. `abandoned`: it is surely slower than the rule allows.
# `max`: the most steps or seconds were counted. `time`: the trial reached its time limit. `job ended`: the job ended by
# itself before the rule applied.
StoppedBy = Literal["enough", "abandoned", "max", "time", "job ended"]


class StopRule(msgspec.Struct, frozen=True, kw_only=True):
    """How many steps a trial counts after its warm-up. Ranks stop together, so a few more steps may be counted."""

    min_steps: int
    max_steps: int
    min_s: float = 0.0  # seconds of counted steps, without the few longest of them
    max_s: float | None = None  # seconds of counted steps; `min_steps` are counted even if they take longer
    relative_error: float = 0.0  # standard error of the mean step over the mean; 0: count `max_steps` or `max_s`
    error_per_root_s: float = 0.0  # an error up to this times the root of the counted seconds is also small enough
    period: int | None = None  # steps between boundaries of the job, whose long steps say nothing about the precision
    abandon_step_s: float | None = None  # a mean step that is surely longer ends the trial, even before `min_steps`
    accept_step_s: float | None = None  # a mean step that is surely shorter needs no better precision

    def __post_init__(self) -> None:
        if not 1 <= self.min_steps <= self.max_steps:
            raise UsageError(
                f"a trial needs 1 <= min_steps <= max_steps, but got {self.min_steps} and {self.max_steps} steps"
            )
        if min(self.min_s, self.relative_error, self.error_per_root_s) < 0:
            raise UsageError(
                "min_s, relative_error and error_per_root_s must not be negative, but are"
                f" {self.min_s:g}, {self.relative_error:g} and {self.error_per_root_s:g}"
            )
        if self.max_s is not None and self.max_s < self.min_s:
            raise UsageError(f"max_s must be at least min_s, but they are {self.max_s:g} and {self.min_s:g} s")

    @property
    def is_fixed(self) -> bool:
        """Whether every trial counts the same number of steps."""
        return self.min_steps == self.max_steps


def fixed_steps(num_steps: int) -> StopRule:
    """Return the rule of a trial with this number of counted steps, whatever they take."""
    return StopRule(min_steps=num_steps, max_steps=num_steps)
