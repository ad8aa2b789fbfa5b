"""The result of `flatout compress`: variants of a model, what each one costs in accuracy, and what it gains.

`compress/` writes these, `verdict/` judges accuracy and speed, `report/` shows them. A loss is how much worse the
metric is than the untouched model's, whichever direction is better.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.verdict import Verdict

UNTOUCHED = "untouched"
RECOMMENDED = "recommended"  # the folder with what runs a script with a recommended variant
AppliedBy = Literal["patch", "files"]
# `not_applied`: nothing of the model was changed. `failed`: the evaluation or the benchmark ended with an error.
VariantOutcome = Literal["measured", "not_applied", "failed"]
# `non_inferior`: the loss is shown to be below the limit. `inferior`: it is shown to be above it. `unknown`: nothing
# can be shown, because the number of samples is unknown.
LossOutcome = Literal["non_inferior", "inferior", "undecided", "unknown"]
# `paired`: each sample's result with the same sample's; `unpaired`: two shares of the same number of samples.
LossMethod = Literal["paired_exact", "paired_mean", "unpaired", "none"]
# Why a variant is not recommended.
Refusal = Literal[
    "not_applied",
    "failed",
    "inferior",
    "loss_not_shown",
    "slower",
    "looks_slower",  # in one start; it was not compared further, and nothing is proven
    "speed_not_shown",
    "no_gain",
    "no_held_out_data",
    "another_chosen",
]
# `gpu_peak`: the most that torch's allocator held on all GPUs since the model was changed. `resident_peak`: the most
# resident memory of the process since then, or `resident_peak_with_start` since the process began.
MemoryKind = Literal["gpu_peak", "resident_peak", "resident_peak_with_start"]
CompressionEndedBy = Literal["all_tried", "budget", "interrupted"]


class MaxLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The largest acceptable loss: a share of the untouched model's metric, or an amount in the metric's unit."""

    value: float
    is_relative: bool


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the user's evaluation printed."""

    value: float
    num_samples: int | None = None  # None: unknown
    samples: tuple[float, ...] = ()  # the metric of each sample, in an order that is the same in each run; (): unknown


class LossVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a variant's metric is worse than the untouched model's by less than the limit."""

    outcome: LossOutcome
    method: LossMethod
    untouched: float
    variant: float
    loss: float  # in the unit of the limit: a share, or an amount
    most_loss: float | None = None  # the loss is below this, at `level`; None: unknown
    num_samples: int | None = None
    level: float  # probability of a false `non_inferior`, at most
    reason: str = ""  # why it is `unknown`, or what is doubtful


class SpeedAt(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a variant at one batch size. `verdict.speedup` above 1: the variant is faster."""

    batch: int | None  # None: the benchmark has no `{batch}`
    verdict: Verdict
    untouched_step_s: float | None = None  # a step is one call of the model
    variant_step_s: float | None = None


class ScreenedSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a variant in its one start of the screening, which orders the variants and proves nothing."""

    batch: int | None  # None: the benchmark has no `{batch}`
    speedup: float  # relative to the starts of the untouched model before and after it
    num_untouched: int  # starts of the untouched model in this screening
    looks_slower: bool  # by clearly more than they differ: it was not compared further


class VariantResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about one variant."""

    name: str
    applied_by: AppliedBy
    kind: str | None = None  # of a patch, as `compress(model, kind)` takes it; None: of a file
    options: dict[str, str] = {}  # further arguments of the patch, such as the file with the ranges of a calibration
    model_path: str | None = None  # the file or folder in the place of {model}; None: the user's own
    outcome: VariantOutcome
    reason: str = ""  # why it was not applied, or failed
    modules: tuple[str, ...] = ()  # that were changed
    num_modules: int | None = None  # of the model, with weights; None: unknown, as of a file
    skipped: tuple[str, ...] = ()  # modules that stay as they are, because changing them costs the most accuracy
    weight_bytes: int | None = None  # in memory
    disk_bytes: int | None = None
    disk_path: str | None = None
    memory_bytes: int | None = None  # peak of a benchmark, median over trials, the largest of the batch sizes
    memory_kind: MemoryKind | None = None  # what it is; None: unknown
    load_s: float | None = None  # from the import of torch to the end of the first call, median over trials
    search: LossVerdict | None = None  # on data that may have chosen the variant
    final: LossVerdict | None = None  # on data that chose nothing
    screened: ScreenedSpeed | None = None  # None: it was not screened
    speeds: tuple[SpeedAt, ...] = ()
    is_recommended: bool = False
    refusal: Refusal | None = None
    dominated_by: str | None = None
    notes: tuple[str, ...] = ()


class UnofferedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that was not tried, and why."""

    name: str
    reason: str


class Compression(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compression: the untouched model, its variants, and which are recommended."""

    eval_command: tuple[str, ...]  # secrets masked
    eval_final_command: tuple[str, ...] | None
    bench_command: tuple[str, ...]
    model: str | None
    metric: str
    is_higher_better: bool
    max_loss: MaxLoss
    batches: tuple[int, ...] = ()  # (): the benchmark has no `{batch}`
    untouched: VariantResult
    evaluation: Evaluation  # of the untouched model, without its samples
    is_repeatable: bool | None  # whether two evaluations of the untouched model agree sample by sample; None: unknown
    variants: tuple[VariantResult, ...] = ()
    unoffered: tuple[UnofferedVariant, ...] = ()
    recommended: tuple[str, ...] = ()
    num_trials: int = 0  # of the comparisons
    num_screening_starts: int = 0  # of the benchmark, those of the untouched model included
    took_s: float = 0.0
    budget_s: float = 0.0
    ended_by: CompressionEndedBy = "all_tried"
    notes: tuple[str, ...] = ()


def variant_file_name(name: str) -> str:
    """Return the name of a variant as that of a file or folder."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
