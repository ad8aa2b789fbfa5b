"""What the loop needs from the outside: run the evaluation, and compare speeds. `processes` does it for real.

Tests have a backend that starts nothing.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from flatout.compress.reports import ModelReport
from flatout.records.compression import UNTOUCHED, AppliedBy, Evaluation, MemoryKind
from flatout.records.trial import TrialResult
from flatout.records.verdict import Verdict


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant to run: a patch of the script's model, or another file in the place of the model."""

    name: str
    applied_by: AppliedBy = "patch"
    kind: str | None = None  # for a patch: its name in `inside.compression.variants`; None: the model stays as it is
    skip: tuple[str, ...] = ()  # modules that stay as they are
    model: str | None = None  # what stands in the place of {model}; None: the user's own
    needs_calibration: bool = False  # a run of the evaluation that notes the ranges of layers
    options: dict[str, str] = {}  # further keys of FLATOUT_COMPRESS


class EvaluationRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the evaluation with a variant."""

    evaluation: Evaluation | None  # None: it failed, or printed no metric
    report: ModelReport | None = None
    disk_bytes: int | None = None
    disk_path: str | None = None
    problem: str = ""


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """What compressing one layer alone does to the output, and how much it saves."""

    error: float  # relative
    saved_bytes: int


class NotPreparedError(Exception):
    """The variant cannot be made of this model; the message says why."""


class Benched(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of a variant's speed with the untouched model's, at one batch size."""

    verdict: Verdict | None  # None: it failed
    untouched_step_s: float | None = None
    variant_step_s: float | None = None
    untouched_memory_bytes: int | None = None
    variant_memory_bytes: int | None = None
    memory_kind: MemoryKind | None = None
    untouched_load_s: float | None = None
    variant_load_s: float | None = None
    num_trials: int = 0
    problem: str = ""
    is_applied: bool = True  # False: the benchmark's model was not changed, although that of the evaluation was
    is_interrupted: bool = False
    is_open: bool = False  # a limit or a signal ended it before it was decided: it can continue


class ScreeningStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the benchmark with a variant, to see roughly how fast it is."""

    trial: TrialResult | None  # None: it failed
    memory_bytes: int | None = None
    memory_kind: MemoryKind | None = None
    load_s: float | None = None
    problem: str = ""
    is_applied: bool = True  # False: the benchmark's model was not changed, although that of the evaluation was


class CompressionBackend(Protocol):
    def evaluate(self, variant: Variant, *, is_final: bool) -> EvaluationRun: ...

    def prepared(self, variant: Variant) -> Variant: ...

    def sensitivity(self, variant: Variant) -> dict[str, Sensitivity]: ...

    def start(self, variant: Variant, batch: int | None, budget_s: float, num_starts: int) -> ScreeningStart: ...

    def bench(self, variant: Variant, batch: int | None, budget_s: float) -> Benched: ...

    def spent_s(self) -> float: ...


UNTOUCHED_VARIANT = Variant(name=UNTOUCHED)
