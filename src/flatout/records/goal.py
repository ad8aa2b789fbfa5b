"""The resources that a goal ("100B tokens in 30 days") needs: GPUs, days, money, energy, carbon, interruptions."""

from __future__ import annotations

import msgspec


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The user's goal in numbers."""

    text: str
    tokens: float
    days: float | None = None  # null: no limit
    usd: float | None = None  # null: no limit


class GoalEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its 90 % interval, or with the range that its source gives."""

    value: float
    low: float
    high: float
    source: str  # predicted, a published rate, a dated price, or an assumption


class GoalOption(msgspec.Struct, frozen=True, kw_only=True):
    """The resources needed with one number of GPUs."""

    num_gpus: int
    step_time_s: float
    layout: str  # in words
    days: GoalEstimate  # calendar days, including interruptions
    usd: GoalEstimate | None  # null: no price is known
    is_reached: bool  # by the expected time and cost
    probability: float | None = None  # of reaching the goal; null: it has no limit, or the price is unknown


class GoalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The resources on the fewest GPUs that reach the goal, or on all GPUs if no number reaches it."""

    goal: Goal
    is_reached: bool
    nearest: str  # the nearest goal in reach, if this one is not; otherwise empty
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
    effective_share: GoalEstimate  # share of the calendar time in productive steps
    options: tuple[GoalOption, ...]
    notes: tuple[str, ...]
    probability: float | None = None  # of reaching the goal with these GPUs
    # Numbers of the cluster's GPUs that reach the goal; null: none does.
    cheapest: int | None = None
    fastest: int | None = None
    fewest_likely: int | None = None  # the fewest that reach it with a probability of at least 90 %
