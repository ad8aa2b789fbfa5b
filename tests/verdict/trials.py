"""Trials made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.records.trial import BASELINE, TrialResult


def trial(index: int, arm: str = BASELINE, step_s: Sequence[float] = (0.1,), **values: Any) -> TrialResult:
    return TrialResult(index=index, arm=arm, outcome="completed", step_s=tuple(step_s), **values)
