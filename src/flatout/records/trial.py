"""What one trial measured: a run of the job with a set of changes, or without any (the baseline).

`trial/` writes these, `verdict/` judges them. Times are of settled steps only: what comes before is warm-up.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.machine import Xid

TrialOutcome = Literal["completed", "out_of_memory", "failed", "timed_out", "cancelled"]
# Why a trial has the outcome `failed`: the command ended with an error, no rank made a training step, too few steps
# were settled to be measured, or a change had no effect in any process.
FailureCause = Literal["error", "no_step", "too_few_steps", "not_applied"]

BASELINE = "baseline"


class Covariates(msgspec.Struct, frozen=True, kw_only=True):
    """What else was going on in a trial's settled steps (Xids: in all of it). None where it was not measured."""

    sm_clock_hz: float | None = None  # mean over samples and GPUs
    throttle_share: dict[str, float] = {}  # share of the samples, by reason as `probe/` names them; the highest GPU
    xids: tuple[Xid, ...] | None = None  # GPU errors that the driver logged, those that the job causes itself too
    temperature_c: float | None = None  # highest
    cores_busy_by_others: float | None = None  # cores that processes outside the job kept busy; the busiest host
    cores_allowed: float | None = None  # to the job; the host with the fewest
    quota_throttled_s_per_s: float | None = None  # by the control group's CPU quota
    nodes: str | None = None  # that a scheduler gave it, as it names them
    job: str | None = None  # the scheduler's number of it


class GradientNorms(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of one optimizer in its first steps, as it was about to use them, of all ranks together.

    A parameter's norm is the root of the mean square over the ranks, or of sharded ones that of the whole.
    """

    num_parameters: int | None  # None: nothing is known of it
    norms: tuple[float, ...]  # of all parameters, each step; NaN: not known
    unclipped: tuple[float, ...] = ()  # the same before the script clipped them; NaN, (): not clipped, or not known
    without: tuple[int, ...] = ()  # parameters, by their place in the optimizer, with no gradient in most of the steps
    absent: tuple[int, ...] = ()  # parameters with no gradient in at least one of the steps
    faint: tuple[int, ...] = ()  # parameters with none, or less than 1e-4 of the whole norm, in any of the steps
    rank_spread: float | None = (
        None  # of a parameter's norm over the ranks, clipped or not, the largest, relative; None: nothing to compare
    )


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trial. Its order among all trials is `index`: drift is judged by it."""

    index: int  # in the order of starting, baselines included
    arm: str  # `baseline`, or the name of the set of changes
    outcome: TrialOutcome
    cause: FailureCause | None = None  # None: the outcome is not `failed`, or an older journal, which has no causes
    problem: str = ""  # one line, where it did not complete
    step_s: tuple[float, ...] = ()  # each settled step, in order; of several ranks the mean
    samples_per_step: float | None = None  # of all ranks
    tokens_per_step: float | None = None
    peak_memory_bytes: int | None = None  # of the caching allocator; the highest rank
    energy_j_per_step: float | None = None  # of all GPUs
    wrong_data: str | None = None  # what the known-answer check of the collectives found; None: nothing, or not asked
    losses: tuple[float, ...] = ()  # of each step from the first, for the gates
    gradients: tuple[GradientNorms, ...] = ()  # of each optimizer, in the order of their first steps; (): not known
    loader_workers: int | None = None  # of a rank's DataLoader: with others, random augmentation draws other samples
    start_s: float | None = None  # from the start of the command to the first settled step
    covariates: Covariates = Covariates()
    took_s: float | None = None  # of the whole run, from its start to its end
    session: int = 0  # counts the interruptions of the tuning before it

    @property
    def is_complete(self) -> bool:
        return self.outcome == "completed" and len(self.step_s) > 0


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline and a candidate that ran one right after the other, in either order."""

    baseline: TrialResult
    candidate: TrialResult
    void_reason: str | None = None  # why the pair does not count; None: it counts

    @property
    def order(self) -> str:
        """`AB`: the baseline ran first; `BA`: the candidate."""
        return "AB" if self.baseline.index < self.candidate.index else "BA"
