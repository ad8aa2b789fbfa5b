"""The result of a tuning run: the winning changes with their measurements, and the machine and job."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.inside.protocol import Variable
from flatout.records.change import Change, ChangeSet, Safety
from flatout.records.prediction import Prediction
from flatout.records.step_time import StepTime
from flatout.records.trial import Padding
from flatout.records.verdict import NoiseFloor, Objective, Verdict

TIMES: tuple[Objective, ...] = ("step_s", "s_per_sample", "s_per_token")  # predictions refer to these
HEAD_NODE = "{head_node}"  # placeholder in a command that runs as a Slurm job: the first node of the job
TriedOutcome = Literal[
    "adopted",
    "not better",
    "unsafe",
    "over the limit",
    "failed",
    "out of memory",
    "not applied",
    "not confirmed",
    "not reached",
]
# Reasons for the end of a tuning run: one of its two budgets, the maximum number of rounds, no candidate worth a trial,
# a failed profile of the applied changes, none of the unchanged job, or the user with Ctrl-C.
EndedBy = Literal[
    "time_budget", "trial_budget", "max_rounds", "no_candidates", "not_profiled", "never_profiled", "interrupted"
]
TuningStage = Literal["noise_floor", "confirmation", "profile"]


# How the files that trials write are kept apart from the user's: by the kernel, which overlays folders for the trial's
# processes alone, or by hooks in its Python processes.
SeparationMethod = Literal["overlay", "hooks"]


class Separation(msgspec.Struct, frozen=True, kw_only=True):
    method: SeparationMethod = "hooks"
    folders: tuple[str, ...] = ()  # overlaid, or watched by the hooks for files that trials leave
    needs_user: bool = False  # whether the overlay needs a user namespace
    reason: str = ""  # why there is no overlay


class TuningEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a tuning run as data; `report/` writes the sentence."""

    ended_by: EndedBy
    limit: float | None = None  # the limit that was reached: seconds, trials or rounds
    num_reserved: int = 0  # trials of the limit that are reserved for the final verdict
    interrupts: TuningStage | None = None  # the stage that the budget interrupted
    left_s: float | None = None  # seconds of the budget that were left, too few for the next trials
    needed_s: float | None = None  # seconds that the next trials would have taken


class TunedChange(msgspec.Struct, frozen=True, kw_only=True):
    change: Change
    verdict: Verdict | None = None  # compared with the changes applied before; None: measured only with others
    prediction: Prediction | None = None
    # False: confirmed only together with others, and no better than noise in its own trial, so it may have no effect.
    is_shown_alone: bool = True
    had_own_trial: bool = True  # False: it was tried only together with others, as they do not interact


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `emit/`."""

    command: tuple[str, ...]  # arguments of the user's command
    changes: ChangeSet  # all winning changes, merged
    each: tuple[TunedChange, ...] = ()
    verdict: Verdict | None = None  # all changes compared with the baseline, on fresh pairs
    covers_first_epoch_only: bool = False  # the loader is changed, and no trial reached a second epoch
    num_trials: int | None = None  # in the tuning
    step_s: float | None = None  # with all changes
    machine: dict[str, str] = {}  # {"device": "NVIDIA H200", "num_ranks": "4", ...}
    versions: dict[str, str] = {}  # {"torch": "2.11.0", "nccl": "2.28.9", ...}
    date: str = ""  # ISO 8601
    config: str = "tuned.toml"  # the file from which `flatout run` reads the changes
    keep: tuple[str, ...] = ()  # options of `flatout run` that keep the job alive
    sbatch_options: tuple[str, ...] = ()  # options of each trial's Slurm job

    @property
    def needs_patches(self) -> bool:
        """Whether something is done inside the processes: patches, or comparing the ranks' tables for NCCL."""
        return bool(self.changes.patches) or Variable.NCCL_TABLE in self.changes.environment

    @property
    def needs_run(self) -> bool:
        """Whether the command must run under `flatout run`, which then applies all changes."""
        return self.needs_patches or bool(self.keep)


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """One file for another tool, not written yet."""

    path: str  # suggested file name
    text: str
    notes: tuple[str, ...] = ()  # changes without a setting in the tool, and what to do about them


class GainSought(msgspec.Struct, frozen=True, kw_only=True):
    """How many trials a gain takes to be shown with 80 % probability."""

    effect: float  # 0.3: 30 %
    num_trials: int | None  # of the baseline and the candidate together; None: no number shows it


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuning can show in its budget, as said before its first candidate."""

    budget_s: float
    run_sd: float  # standard deviation of a trial's log cost
    is_assumed: bool  # whether `run_sd` is assumed, as too few trials have run
    gains: tuple[GainSought, ...]
    trial_s: float | None = None  # duration of a trial; None: none has run
    measured_s: float | None = None  # of it, the measured steps
    num_affordable: int = 0  # trials of the budget, those that have run included
    detectable: float | None = None  # smallest gain that they show with 80 % probability; None: too few trials


class MoreTrials(msgspec.Struct, frozen=True, kw_only=True):
    """What more trials would show about a change that is undecided."""

    num_trials: int  # of both arms
    seconds: float
    probability: float  # that the change is called better by then


class TriedSet(msgspec.Struct, frozen=True, kw_only=True):
    """A change, or several together, tried against the changes applied before."""

    name: str  # name of the arm: names of the changes, joined by " + "
    changes: tuple[str, ...]
    safety: Safety
    round: int
    bound: float | None  # maximum speedup that the findings allow
    predicted_from: tuple[str, ...] = ()
    prediction: Prediction | None = None
    outcome: TriedOutcome
    screened: float | None = None  # an estimate from one trial, not a claim
    verdict: Verdict | None = None
    more: MoreTrials | None = None  # None: decided, never tried, or more trials are unlikely to show a gain
    reason: str = ""  # one line: the reason for the outcome


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """A change in a separate trial next to a baseline, with any result: predictions learn from all such trials."""

    prediction: Prediction
    speedup: float
    sd: float  # of log(speedup), by the noise floor


ALL_BUT_COMPUTATION = "all but computation"  # the bound of a job in which nothing was found


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum speedup of a step from fixing a finding completely, if all other work takes as long as before.

    A change that also makes other work shorter, for example by freeing cores, can bring more.
    """

    finding: str
    speedup: float
    is_of_trials_only: bool = False  # the profile did not hold it, e.g. because it was shorter than an epoch
    most: float | None = None  # upper limit of the speedup, at 95 % confidence; None: not estimated


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a tuning run, and the options that it was started with."""

    budget_s: float
    max_trials: int | None = None
    options: tuple[str, ...] = ()  # separate arguments, as typed
    subcommand: str = ""  # `nccl`: only changes of NCCL were tried


class PaddingChange(msgspec.Struct, frozen=True, kw_only=True):
    """What batches of like length have changed, in the tuned job."""

    padding: Padding
    # Standard deviation of the step time, as a share of its mean, over the measured steps.
    baseline_step_spread: float
    tuned_step_spread: float


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tuning run: accepted changes, tried changes, and the noise floor used for verdicts."""

    tuning: Tuning
    objective: Objective
    allowed_safety: Safety
    tried: tuple[TriedSet, ...]
    screened: tuple[Screened, ...] = ()  # changes that ran, were safe, and had a prediction
    bounds: tuple[Bound, ...]  # of the baseline
    floor: NoiseFloor | None
    num_steps: int  # per trial
    baseline_step_s: float | None
    tuned_step_s: float | None
    baseline_step: StepTime | None = None  # `baseline_step_s` in its parts; None: an older result, or no complete trial
    tuned_step: StepTime | None = None
    baseline_peak_memory_bytes: int | None = None
    tuned_peak_memory_bytes: int | None = None
    num_trials: int
    num_resumed: int  # of these, read from the journal
    took_s: float
    end: TuningEnd
    request: TuneRequest | None = None
    outlook: Outlook | None = None  # None: an older result, or no trial has run
    separation: Separation | None = None  # of the trials' files; None: an older result
    balanced: PaddingChange | None = None  # None: the tuned job has the script's batches
    notes: tuple[str, ...] = ()  # information for the reader: redirected outputs, missing checks

    @property
    def is_cut_short(self) -> bool:
        """Whether a budget, a profile that took too long or the user ended the tuning: untried changes are unknown."""
        return self.end.ended_by in ("time_budget", "trial_budget", "never_profiled", "interrupted")

    @property
    def prediction_errors(self) -> tuple[float, ...]:
        """Return the relative error of the predicted speedup of each change with pairs."""
        return tuple(abs(said.speedup / speedup - 1) for said, speedup in self.predicted_and_measured)

    @property
    def prediction_errors_without_history(self) -> tuple[float, ...]:
        """Return the errors of the predictions as replayed; empty if history corrected none of them."""
        found = self.predicted_and_measured
        if all(said.correction == 1.0 for said, _ in found):
            return ()
        return tuple(abs(said.speedup / said.correction / speedup - 1) for said, speedup in found)

    @property
    def screened_alone(self) -> tuple[Screened, ...]:
        """Return the last trial of each change without pairs; an unsafe change has no speed."""
        if self.objective not in TIMES:
            return ()
        known = {said.change for said, _ in self.predicted_and_measured}
        known |= {one.name for one in self.tried if one.outcome == "unsafe"}
        return tuple(
            {one.prediction.change: one for one in self.screened if one.prediction.change not in known}.values()
        )

    @property
    def predicted_and_measured(self) -> tuple[tuple[Prediction, float], ...]:
        """Return the prediction of each change with pairs, and the plain mean of its pairs, whatever the verdict.

        Predictions are of time, so other objectives have none; an unsafe change has no speed.
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
