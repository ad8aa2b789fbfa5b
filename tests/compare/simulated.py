"""Two arms of which is known how fast they are: an `ArmRunner` that starts nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.compare.judge import CANDIDATE
from flatout.compare.runner import arm_of
from flatout.errors import FlatoutError
from flatout.inside.phases.counted_steps import CountedSteps
from flatout.inside.settings import StopRule as JobStopRule
from flatout.records.comparison import ArmName
from flatout.records.stop_rule import StopRule
from flatout.records.trial import BASELINE, TrialResult
from flatout.tune.profiled import Profiled

Shape = Literal["white", "drift", "warming", "two states", "spikes", "walk", "noisier B"]
Floats = NDArray[np.float64]
STEP_S = 0.1
START_S = 5.0


class SimulatedArms:
    """`slowdown` is B's: 0.05 is 5 % more time per step. `noise` is the run-to-run standard deviation."""

    def __init__(
        self,
        slowdown: float = 0.0,
        *,
        noise: float = 0.01,
        shape: Shape = "white",
        seed: int = 0,
        fails: dict[int, str] | None = None,
        interrupts_at: int | None = None,
        samples_per_step: float | None = None,
    ) -> None:
        self.num_trials = 0
        self.now_s = 0.0
        self._slowdown, self._noise, self._shape = slowdown, noise, shape
        self._random = np.random.default_rng(seed)
        self._walk = 0.0
        self._fails = fails or {}
        self._interrupts_at = interrupts_at
        self._samples_per_step = samples_per_step

    def trial(self, length: StopRule | int) -> TrialResult:
        index = self.num_trials
        if index == self._interrupts_at:
            raise KeyboardInterrupt
        self.num_trials += 1
        arm = arm_of(index)
        name = BASELINE if arm == "A" else CANDIDATE
        if index in self._fails:
            self.now_s += START_S
            problem = self._fails[index]
            return TrialResult(index=index, arm=name, outcome="failed", cause="error", problem=problem, took_s=START_S)
        log = self._run_log(index, arm) + (math.log1p(self._slowdown) if arm == "B" else 0.0)
        steps = self._counted_steps(length, math.exp(log))
        took_s = START_S + float(steps.sum())
        self.now_s += took_s
        return TrialResult(
            index=index,
            arm=name,
            outcome="completed",
            step_s=tuple(steps.tolist()),
            start_s=START_S,
            took_s=took_s,
            samples_per_step=self._samples_per_step,
        )

    def _counted_steps(self, length: StopRule | int, factor: float) -> Floats:
        """Return the steps that the trial counts: as many as are asked for, or until the job's own rule stops it."""
        if isinstance(length, int):
            return self._drawn_steps(length) * factor
        assert length.max_s is not None
        steps = self._drawn_steps(length.min_steps + math.ceil(length.max_s / (STEP_S * factor))) * factor
        counted = CountedSteps(JobStopRule(**msgspec.to_builtins(length)))
        for number, step_s in enumerate(steps.tolist(), 1):
            counted.add(step_s)
            if counted.reason_to_stop() is not None:
                return steps[:number]
        return steps

    def _drawn_steps(self, num_steps: int) -> Floats:
        """Return steps with the noise between steps, without the run's own offset."""
        steps = STEP_S * np.exp(self._random.normal(0, 0.02, num_steps))
        if self._shape == "spikes":
            steps *= np.where(self._random.random(num_steps) < 0.02, self._random.uniform(1.5, 5.0, num_steps), 1.0)
        return steps

    def _run_log(self, index: int, arm: ArmName) -> float:
        """Return the log of a run's own offset."""
        noise = float(self._random.normal(0, self._noise))
        if self._shape == "drift":
            noise += 0.003 * index
        if self._shape == "warming":
            noise += 0.05 * math.exp(-index / 1.5)
        if self._shape == "two states":
            noise += 0.15 * (self._random.random() < 0.3)
        if self._shape == "walk":
            self._walk += float(self._random.normal(0, self._noise / 2))
            noise += self._walk
        if self._shape == "noisier B" and arm == "B":
            noise *= 3
        return noise

    def profile(self, arm: ArmName) -> Profiled:
        raise FlatoutError("it is simulated")

    def recording_of(self, index: int) -> Path | None:
        return None

    def output_of(self, index: int) -> Path | None:
        return None

    def spent_s(self) -> float:
        return self.now_s
