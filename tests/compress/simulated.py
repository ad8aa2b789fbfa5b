"""A backend that starts nothing: variants with a known true accuracy, speed and size, on drawn samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from flatout.compress.backend import Benched, EvaluationRun, ScreeningStart, Sensitivity, Variant
from flatout.compress.reports import ModelReport
from flatout.records.compression import UNTOUCHED, Evaluation
from flatout.records.trial import BASELINE, TrialResult
from flatout.verdict.arms import judge_arms

ACCURACY = 0.9
DISK_BYTES = 1000


@dataclass
class Truth:
    """What is true of a variant."""

    loss: float = 0.0  # of the accuracy, as a share
    speedup: float = 1.0
    size: float = 1.0
    is_applied: bool = True
    fails: bool = False
    is_lost: bool = False  # it fails before a model is called
    noise: float = 0.03  # of a trial's log cost


@dataclass
class SimulatedBackend:
    truths: dict[str, Truth]
    num_samples: int = 2000
    seed: int = 0
    prints_samples: bool = True
    prints_number: bool = True
    trial_s: float = 1.0
    final_samples: int = 2000
    clock_s: float = 0.0
    sensitivities: dict[str, Sensitivity] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    benched: list[tuple[str, int | None]] = field(default_factory=list)
    evaluated: list[tuple[str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.RandomState(self.seed)
        self._right = {is_final: self._random.random_sample(num) < ACCURACY for is_final, num in self._numbers()}

    def _numbers(self) -> list[tuple[bool, int]]:
        return [(False, self.num_samples), (True, self.final_samples)]

    def spent_s(self) -> float:
        return self.clock_s

    def evaluate(self, variant: Variant, *, is_final: bool) -> EvaluationRun:
        self.evaluated.append((variant.name, is_final))
        self.clock_s += self.trial_s
        truth = self._truth(variant)
        applied = truth.is_applied or variant.name == UNTOUCHED
        report = ModelReport(variant=variant.name, applied=applied, reason=None if applied else "nothing fits")
        if truth.fails:
            return EvaluationRun(evaluation=None, report=None if truth.is_lost else report, problem="ValueError: no")
        right = self._answers(truth, self._right[is_final])
        evaluation = Evaluation(
            value=float(right.mean()),
            num_samples=len(right) if self.prints_number else None,
            samples=tuple(map(float, right)) if self.prints_samples else (),
        )
        return EvaluationRun(evaluation=evaluation, report=report, disk_bytes=round(DISK_BYTES * truth.size))

    def _answers(self, truth: Truth, right: np.ndarray) -> np.ndarray:
        """Some right answers are lost, and a few wrong ones are corrected, unless the model is the same."""
        if truth.loss == 0.0:
            return right
        corrected = 0.05
        lost = truth.loss + corrected * (1 - ACCURACY) / ACCURACY
        draws = self._random.random_sample(len(right))
        return np.where(right, draws >= lost, draws < corrected)

    def prepared(self, variant: Variant) -> Variant:
        return variant

    def sensitivity(self, variant: Variant) -> dict[str, Sensitivity]:
        return self.sensitivities

    def start(self, variant: Variant, batch: int | None, budget_s: float, num_starts: int) -> ScreeningStart:
        self.started.append(variant.name)
        self.clock_s += self.trial_s
        trial = self._drawn(self._truth(variant), 0, is_variant=variant.name != UNTOUCHED)
        return ScreeningStart(trial=msgspec.structs.replace(trial, took_s=self.trial_s), memory_bytes=100, load_s=2.0)

    def bench(self, variant: Variant, batch: int | None, budget_s: float) -> Benched:
        """Judge drawn trials, eight of each arm in turn, by the rules of `verdict/`."""
        self.benched.append((variant.name, batch))
        truth = self._truth(variant)
        trials = []
        for index in range(16):
            is_variant = index % 4 in (1, 2)
            trials.append(self._drawn(truth, index, is_variant=is_variant))
        self.clock_s += len(trials) * self.trial_s
        return Benched(verdict=judge_arms(trials, "B", is_last=True, objective="s_per_sample"), num_trials=len(trials))

    def _drawn(self, truth: Truth, index: int, *, is_variant: bool) -> TrialResult:
        cost = (1 / truth.speedup if is_variant else 1.0) * np.exp(self._random.normal(0, truth.noise))
        return TrialResult(
            index=index,
            arm="B" if is_variant else BASELINE,
            outcome="completed",
            step_s=(float(cost),),
            samples_per_step=1.0,
        )

    def _truth(self, variant: Variant) -> Truth:
        return self.truths.get(variant.name, Truth())
