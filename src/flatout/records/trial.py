"""The result of one trial: a run of the job with a set of changes, or without any (the baseline).

`trial/` writes these, `verdict/` judges them. Times are of the steps after warm-up only.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from flatout.records.machine import Xid
from flatout.records.start_costs import StartCosts
from flatout.records.stop_rule import StoppedBy

TrialOutcome = Literal["completed", "out_of_memory", "failed", "timed_out", "cancelled"]
# Why a trial has the outcome `failed`: the command ended with an error, no rank made a training step, too few steps
# were settled to be measured, a change had no effect in any process, the training began in a different state from the
# first trial's, e.g. because it resumed from a checkpoint, or the job read a file that an earlier trial had written.
FailureCause = Literal["error", "no_step", "too_few_steps", "not_applied", "other_start", "read_earlier"]

BASELINE = "baseline"

# What a journal can hold: other numbers are those of a damaged line, which is not read.
StepDuration = Annotated[float, msgspec.Meta(ge=1e-9, le=1e7)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]

# Work other than training that lengthens some steps. `epoch_end`: a loader of the training ran out of batches.
SpellKind = Literal[
    "epoch_end", "loader_start", "evaluation", "checkpoint", "collection", "compilation", "logging", "unknown"
]


class StepSpell(msgspec.Struct, frozen=True, array_like=True):
    """Work of one kind in one step, as the recorder's hooks saw it on the rank that it took longest."""

    step: Count  # number of the step in the job, from 0
    kind: SpellKind
    seconds: Seconds  # 0 for `epoch_end`: only that it happened is known


class Covariates(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions during a trial's measured steps (Xids: during the complete trial). None if not measured."""

    sm_clock_hz: Amount | None = None  # mean over samples and GPUs
    # Share of the samples by reason as `probe/` names it, on the GPU with the most.
    throttle_share: dict[str, Amount] = {}
    xids: tuple[Xid, ...] | None = None  # GPU errors that the driver logged, including those that the job caused
    temperature_c: float | None = None  # highest
    cores_busy_by_others: Amount | None = None  # cores busy with processes outside the job, on the busiest host
    cores_allowed: Amount | None = None  # for the job, on the host with the fewest
    quota_throttled_s_per_s: Amount | None = None  # by the cgroup's CPU quota
    nodes: str | None = None  # allocated by a scheduler, with its names
    job: str | None = None  # the scheduler's job ID


class GradientNorms(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of one optimizer before its first updates, over all ranks.

    A parameter's norm is the root mean square over the ranks, or the norm of the complete gradient if it is sharded.
    """

    num_parameters: int | None  # None: unknown
    norms: tuple[float, ...]  # over all parameters, per step; NaN: unknown
    unclipped: tuple[float, ...] = ()  # the same before the script clipped them; NaN, (): not clipped, or unknown
    without: tuple[int, ...] = ()  # parameters, by index in the optimizer, without a gradient in most steps
    absent: tuple[int, ...] = ()  # parameters without a gradient in at least one step
    faint: tuple[int, ...] = ()  # parameters without one, or with less than 1e-4 of the total norm, in any step
    # Largest relative spread over the ranks of a parameter's norm, clipped or not; None: no comparison possible.
    rank_spread: float | None = None


class OutputDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that a model returned in one of its first calls, on rank 0, in a script that only infers."""

    call: Count  # of the model, from 0
    shape: tuple[int, ...]
    norm: float | None = None  # None: it has no plain values
    entries: tuple[float, ...] = ()  # at fixed places
    answers: tuple[int, ...] = ()  # place of the largest entry along the last dimension, of the first rows
    samples: tuple[tuple[float, ...], ...] = ()  # entries at fixed places of each of the first samples, if it has any


class StartState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one optimizer before the first step of a trial, over all ranks."""

    num_steps: int  # that it had made before
    has_state: bool  # momentum or the like
    weights: str | None  # digest; None: unknown


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the tokens of an epoch's batches that is padding, with the script's batches and balanced."""

    before_share: Share
    after_share: Share


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trial. `index` is its position among all trials, by which drift is judged."""

    index: Count  # in starting order, including baselines
    arm: str  # `baseline`, or the name of the set of changes
    outcome: TrialOutcome
    cause: FailureCause | None = None  # None: the outcome is not `failed`, or an older journal, which has no causes
    problem: str = ""  # one line, if it did not complete
    step_s: tuple[StepDuration, ...] = ()  # each measured step, in order; mean over ranks
    # Places in `step_s` of steps before which a loader ended; None: unknown.
    epoch_ends: tuple[Count, ...] | None = None
    first_step: Count | None = None  # number in the job, from 0, of the first step in `step_s`; None: unknown
    unmeasured_steps: tuple[Count, ...] = ()  # numbers of later steps that `step_s` lacks: the recorder worked in them
    # The spells of all steps after the first, warm-up included, by step; kinds that most steps have are absent.
    spells: tuple[StepSpell, ...] | None = None  # None: unknown, as in an older journal
    # Work whose first occurrence in the job takes as long as the later ones, as a longer run of the job showed.
    typical_firsts: tuple[SpellKind, ...] = ()
    # Mean wait of a measured step for its batch, on the rank that waits longest, without the start of a loader.
    loader_wait_s: Seconds | None = None  # None: unknown, as in an older journal
    steps_per_epoch: Count | None = None  # from the length of the loader; None: unknown
    samples_per_step: Amount | None = None  # of all ranks
    tokens_per_step: Amount | None = None
    peak_memory_bytes: Count | None = None  # of the caching allocator; the highest rank
    energy_j_per_step: Amount | None = None  # of all GPUs
    wrong_data: str | None = None  # result of the known-answer check of the collectives; None: correct, or not checked
    losses: tuple[float, ...] = ()  # of each step, including warm-up, for the gates
    gradients: tuple[GradientNorms, ...] = ()  # per optimizer, in the order of first use; (): unknown
    start: tuple[StartState, ...] = ()  # per optimizer, as `gradients`; (): unknown
    model_outputs: tuple[OutputDigest, ...] = ()  # of a script that only infers; (): unknown
    has_overlapping_calls: bool = False  # several threads call the model at once: a step is not the latency of a call
    padding: Padding | None = None  # None: no batches were balanced
    loader_workers: Count | None = None  # of a rank's DataLoader; random augmentation depends on their number
    has_other_samples: bool = False  # its loader drew from another seed, to show how far losses differ by the samples
    has_other_rounding: bool = False  # its weights were disturbed by a rounding, to show how far that carries
    sets_own_seed: bool | None = None  # the script seeds torch; if not, its random numbers start from the trial's seed
    start_s: Seconds | None = None  # from the start of the command to the first measured step
    start_costs: StartCosts | None = None  # its parts; None: unknown, or an older journal
    covariates: Covariates = Covariates()
    took_s: Seconds | None = None  # from the start of the run to its end
    stopped_by: StoppedBy | None = None  # None: it did not complete, or an older journal
    session: Count = 0  # number of interruptions of the tuning before this trial

    @property
    def is_complete(self) -> bool:
        return self.outcome == "completed" and len(self.step_s) > 0
