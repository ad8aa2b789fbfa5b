"""A job of which is known how fast it is with each change: a runner that starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.change.jobs import diagnosis, facts
from tests.trial.recordings import measured, recording
from tests.trial.training import Fault, train

from flatout.diagnosis_pipeline import Diagnosed
from flatout.errors import FlatoutError
from flatout.records.change import ChangeSet, JobFacts
from flatout.records.trial import TrialResult
from flatout.records.tuning import TuneResult
from flatout.trial.outputs import Outputs
from flatout.tune.loop import tune
from flatout.tune.options import TuneOptions
from flatout.tune.profiled import Profiled

if TYPE_CHECKING:  # `benchmarks/tune_simulated_jobs.py` runs earlier versions, too
    from flatout.tune.profiled import CountedProfile

STEP_S = 0.25
# Sockets, where the communication is 40 % of a step and loading 30 %: both have changes in the catalogue.
FACTS = facts(cores_allowed=64.0)
COSTS = {"exposed-communication": 0.1, "data-loading": 0.075}
COMMUNICATION, LOADING = ({name: cost} for name, cost in COSTS.items())  # of jobs with one cause, so without bundles
SOCKETS, WORKERS, BUCKET = "nccl-sockets=2x2+8", "dataloader-workers=15", "ddp-bucket=200"


class SimulatedRunner:
    """Has what `Runner` has. `speedups`: by change; a set is as fast as the product of its changes."""

    def __init__(
        self,
        speedups: Mapping[str, float],
        *,
        seed: int = 0,
        between_sd: float = 0.01,
        step_sd: float = 0.03,
        faults: Mapping[str, Fault] | None = None,
        ends: Callable[[int, ChangeSet], dict[str, object]] = lambda index, changes: {},
        start_s: float = 20.0,
        profile_fails_with: str | None = None,
        job: JobFacts = FACTS,
        left_over: Mapping[str, float] | None = None,
        rate: float = 0.02,
        max_norm: float | None = None,
        costs: Mapping[str, float] = COSTS,
    ) -> None:
        self.command = ("torchrun", "--nproc-per-node", "4", "train.py", "--batch", "8")
        self.out = Path("out")
        self.num_trials = self.num_resumed = 0
        self.usual_s: float | None = None
        self.outputs = Outputs()
        self.separation = None
        self.now_s = self.waited_s = 0.0
        self.made: list[tuple[str, TrialResult]] = []
        self.num_profiles = 0
        self._rate, self._max_norm = rate, max_norm
        self._costs = dict(costs)
        self._speedups, self._faults, self._ends = dict(speedups), dict(faults or {}), ends
        self._random = np.random.default_rng(seed)
        self._between_sd, self._step_sd, self._start_s = between_sd, step_sd, start_s
        self._profile_fails_with = profile_fails_with
        self._job = job
        self._left_over = dict(left_over or {})  # what a finding still costs where a change of its family is on

    def trial(
        self,
        changes: ChangeSet,
        num_steps: int,
        place: str = "",
        *,
        other_samples: bool = False,
        other_rounding: bool = False,
    ) -> TrialResult:
        index, self.num_trials = self.num_trials, self.num_trials + 1
        names = [change.name for change in changes.changes]
        speedup = float(np.prod([self._speedups.get(name, 1.0) for name in names]))
        run = STEP_S / speedup * np.exp(self._random.normal(0, self._between_sd))
        steps = run * np.exp(self._random.normal(0, self._step_sd, num_steps))
        noise_seed = int(self._random.integers(1 << 30))
        fault = next((self._faults[name] for name in names if name in self._faults), "none")
        how = {"rate": self._rate, "max_norm": self._max_norm, "noise_seed": noise_seed}
        resample_seed = 7 if other_samples else None
        trained = train(fault, num_steps=20, float_noise=2e-4, resample_seed=resample_seed, **how)  # type: ignore[arg-type]
        result = {
            "index": index,
            "arm": changes.name,
            "outcome": "completed",
            "step_s": tuple(steps.tolist()),
            "losses": trained.losses,
            "gradients": trained.gradients,
            "start_s": self._start_s,
            "peak_memory_bytes": 1000,
            "has_other_samples": other_samples,
            **({"has_other_rounding": True} if other_rounding else {}),
        } | self._ends(index, changes)
        found = TrialResult(**result)  # type: ignore[arg-type]
        took_s = self._start_s + float(steps.sum())
        self.usual_s = took_s if self.usual_s is None else self.usual_s
        self.now_s += took_s
        self.made.append((changes.name, found))
        return found

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        self.num_profiles += 1
        if self._profile_fails_with is not None and self.num_profiles > 1:
            raise FlatoutError(self._profile_fails_with)
        on = {change.family for change in changes.changes}
        answer = {"exposed-communication": "nccl", "data-loading": "dataloader"}
        left = {
            name: self._left_over.get(name, 0.0) if answer[name] in on else cost for name, cost in self._costs.items()
        }
        left = {name: cost for name, cost in left.items() if cost}
        return Profiled(
            done=Diagnosed(diagnosis=diagnosis(left, step_s=STEP_S), job=None, sources={}),  # type: ignore[arg-type]
            recording=recording(Path("recording"), numbers=measured(step_s=STEP_S)),
            facts=self._job,
        )

    def spent_s(self) -> float:
        return self.now_s

    def names(self) -> list[str]:
        return [name for name, _ in self.made]


def tuned(runner: SimulatedRunner, **options: object) -> TuneResult:
    asked = {"num_steps": 20, "max_screened": 6, "budget_s": 1e9} | options
    return tune(runner, TuneOptions(**asked), lambda line: None)  # type: ignore[arg-type]
