"""What a tuning ended with: the winning changes with what was measured of them, and on what machine and job."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.change import Change, ChangeSet, Safety
from flatout.records.prediction import Prediction
from flatout.records.verdict import NoiseFloor, Objective, Verdict

TIMES: tuple[Objective, ...] = ("step_s", "s_per_sample", "s_per_token")  # that predictions are of
HEAD_NODE = "{head_node}"  # in a word of a command that is started as a Slurm job: the first node of the job
TriedOutcome = Literal[
    "adopted", "not better", "unsafe", "failed", "out of memory", "not applied", "not confirmed", "not reached"
]
# What ended a tuning: one of its two budgets, the most rounds that it may make, no candidate that is worth a trial, or
# the applied changes, of which no profile could be made.
EndedBy = Literal["time_budget", "trial_budget", "max_rounds", "no_candidates", "not_profiled"]
TuningStage = Literal["noise_floor", "confirmation"]


class TuningEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What ended a tuning, as data: `report/` words it."""

    ended_by: EndedBy
    limit: float | None = None  # the one that was reached: seconds, trials or rounds
    num_reserved: int = 0  # of the limit on trials, those that are kept for the final verdict
    interrupts: TuningStage | None = None  # what the budget left unfinished


class TunedChange(msgspec.Struct, frozen=True, kw_only=True):
    change: Change
    verdict: Verdict | None = None  # alone against what was on before it; None: measured only together
    prediction: Prediction | None = None
    # False: confirmed only together with others, and in its own trial no better than noise: it may bring nothing.
    is_shown_alone: bool = True


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What `emit/` writes from."""

    command: tuple[str, ...]  # the user's, a word each, as it was tuned
    changes: ChangeSet  # all that won, merged
    each: tuple[TunedChange, ...] = ()
    verdict: Verdict | None = None  # of all together against the baseline, on fresh pairs
    num_trials: int | None = None  # of the whole tuning
    machine: dict[str, str] = {}  # {"device": "NVIDIA H200", "num_ranks": "4", ...}
    versions: dict[str, str] = {}  # {"torch": "2.11.0", "nccl": "2.28.9", ...}
    date: str = ""  # ISO 8601
    config: str = "tuned.toml"  # where `flatout run` finds the changes when the emitted file is used
    keep: tuple[str, ...] = ()  # options of `flatout run` by which the job is to be kept alive
    sbatch_options: tuple[str, ...] = ()  # with which each trial was a Slurm job

    @property
    def needs_patches(self) -> bool:
        return bool(self.changes.patches)

    @property
    def needs_run(self) -> bool:
        """Whether `flatout run` is around the command; it then applies all that was tuned."""
        return self.needs_patches or bool(self.keep)


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """One file for another tool; nothing is written yet."""

    path: str  # suggested file name
    text: str
    notes: tuple[str, ...] = ()  # changes that the tool has no setting for, and what to do about them


class TriedSet(msgspec.Struct, frozen=True, kw_only=True):
    """A change, or several together, as it was tried against what was on before it."""

    name: str  # of the arm: names of changes joined by " + "
    changes: tuple[str, ...]
    safety: Safety
    round: int
    bound: float | None  # the most that the findings allow
    predicted_from: tuple[str, ...] = ()
    prediction: Prediction | None = None
    outcome: TriedOutcome
    screened: float | None = None  # an estimate from one trial, no claim
    verdict: Verdict | None = None
    reason: str = ""  # one line: why it ended so


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """A change in a trial of its own beside the baseline, whatever came of it: predictions are learned from all."""

    prediction: Prediction
    speedup: float
    sd: float  # of log(speedup), by the noise floor


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a step would gain if a finding were mended wholly: the most that any change for it can bring."""

    finding: str
    speedup: float


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How much a tuning was given to spend, and the options that say how it was to tune."""

    budget_s: float
    max_trials: int | None = None
    options: tuple[str, ...] = ()  # a word each, as one would type them


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole tuning: what won, what was tried, and what it was judged against."""

    tuning: Tuning
    objective: Objective
    allowed_safety: Safety
    tried: tuple[TriedSet, ...]
    screened: tuple[Screened, ...] = ()  # that ran, were safe, and had a prediction
    bounds: tuple[Bound, ...]  # of the job as it came
    floor: NoiseFloor | None
    num_steps: int  # a trial
    baseline_step_s: float | None
    tuned_step_s: float | None
    baseline_peak_memory_bytes: int | None = None
    tuned_peak_memory_bytes: int | None = None
    num_trials: int
    num_resumed: int  # of them, from the journal
    took_s: float
    end: TuningEnd
    request: TuneRequest | None = None
    notes: tuple[str, ...] = ()  # what a reader must know: outputs that were diverted, what was not checked

    @property
    def is_cut_short(self) -> bool:
        """Whether its budget of time or trials ended it: that says nothing of what was not reached."""
        return self.end.ended_by in ("time_budget", "trial_budget")

    @property
    def prediction_errors(self) -> tuple[float, ...]:
        """Of each change that has pairs, the relative error of its predicted speedup."""
        return tuple(abs(said.speedup / speedup - 1) for said, speedup in self.predicted_and_measured)

    @property
    def prediction_errors_without_history(self) -> tuple[float, ...]:
        """The same of the predictions as they were replayed; empty where no history changed one of them."""
        found = self.predicted_and_measured
        if all(said.correction == 1.0 for said, _ in found):
            return ()
        return tuple(abs(said.speedup / said.correction / speedup - 1) for said, speedup in found)

    @property
    def screened_alone(self) -> tuple[Screened, ...]:
        """Of those with no pairs, the last trial of each; an unsafe change has no speed."""
        if self.objective not in TIMES:
            return ()
        known = {said.change for said, _ in self.predicted_and_measured}
        known |= {one.name for one in self.tried if one.outcome == "unsafe"}
        return tuple(
            {one.prediction.change: one for one in self.screened if one.prediction.change not in known}.values()
        )

    @property
    def predicted_and_measured(self) -> tuple[tuple[Prediction, float], ...]:
        """Of each change that has pairs, its prediction and the plain mean of its pairs, whatever the verdict.

        What is predicted is time, so there are none for another objective; an unsafe change has no speed.
        """
        if self.objective not in TIMES:
            return ()
        return tuple(
            (one.prediction, one.verdict.mean_speedup)
            for one in self.tried
            if one.prediction is not None
            and one.verdict is not None
            and one.verdict.mean_speedup is not None
            and one.outcome != "unsafe"
        )
