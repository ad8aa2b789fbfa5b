"""Trials of two arms, by hand, at random, or from a recorded tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from tests.verdict.trials import trial

from flatout.records.trial import BASELINE, TrialResult

TUNINGS = Path(__file__).parents[1] / "data" / "tunings"


def arms(plan: str, logs: Sequence[float], *, effect: float = 0.0) -> list[TrialResult]:
    """Trials in the order of `plan`, A for the baseline, with these log costs; B is faster by the log `effect`."""
    names = {"A": BASELINE, "B": "candidate"}
    return [
        trial(index, names[arm], (0.1 * math.exp(log - effect * (arm == "B")),))
        for index, (arm, log) in enumerate(zip(plan, logs, strict=True))
    ]


def noisy_arms(seed: int, plan: str, *, sd: float = 0.01, effect: float = 0.0) -> list[TrialResult]:
    return arms(plan, np.random.default_rng(seed).normal(0, sd, len(plan)).tolist(), effect=effect)


def recorded(name: str) -> list[TrialResult]:
    """The trials of a recorded tuning of a public script."""
    lines = (TUNINGS / f"{name}.jsonl").read_text().splitlines()
    return [msgspec.json.decode(line, type=TrialResult) for line in lines]
