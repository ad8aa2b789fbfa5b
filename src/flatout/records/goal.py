"""What a goal ("100B tokens in 30 days") takes: GPUs, days, money, energy, carbon and interruptions."""

from __future__ import annotations

import msgspec


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """As the user put it, in numbers."""

    text: str
    tokens: float
    days: float | None = None  # null: as long as it takes
    usd: float | None = None  # null: whatever it costs


class GoalEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its interval of nine in ten, or of the range that its source gives."""

    value: float
    low: float
    high: float
    source: str  # what it rests on: predicted, a published rate, a dated price, an assumption


class GoalOption(msgspec.Struct, frozen=True, kw_only=True):
    """One number of GPUs."""

    num_gpus: int
    step_time_s: float
    layout: str  # in words
    days: GoalEstimate  # on the calendar, with what interruptions cost
    usd: GoalEstimate | None  # null: no price is known
    is_reached: bool


class GoalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the goal takes on the fewest GPUs that reach it, or, where none of those given does, on all of them."""

    goal: Goal
    is_reached: bool
    nearest: str  # where the goal is out of reach: the nearest that is not; else empty
    num_gpus: int
    global_batch: int
    num_steps: int
    layout: str
    days: GoalEstimate
    gpu_hours: GoalEstimate
    usd: GoalEstimate | None
    energy_mwh: GoalEstimate | None
    carbon_t: GoalEstimate | None
    interruptions: GoalEstimate
    effective_share: GoalEstimate  # of the calendar time that goes into steps which count
    options: tuple[GoalOption, ...]
    notes: tuple[str, ...]
