"""The options of a comparison."""

from __future__ import annotations

import msgspec

from flatout.records.verdict import Objective
from flatout.verdict.arms import MIN_EFFECT


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    budget_s: float = 1800.0
    max_trials: int | None = None  # of both arms together; None: as many as the budget and the analyses allow
    num_steps: int | None = None  # measured steps per trial; None: each trial stops when it has counted enough
    gate: float | None = None  # 0.03: is B slower by more than 3 %?
    min_effect: float = MIN_EFFECT
    objective: Objective | None = None  # None: samples/s if both arms report samples, else steps/s
    num_profiles: int = 3  # of each arm, at most, to find where the difference is
