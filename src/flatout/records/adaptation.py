"""What `flatout run --adapt` does to a running job besides its loader, or would do in a dry run."""

from __future__ import annotations

from typing import Literal

import msgspec


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one pass and the passes of one optimizer step, with the script's options that set them."""

    batch_option: str
    passes_option: str
    batch: int
    passes: int


class MemoryAdaptation(msgspec.Struct, frozen=True, kw_only=True):
    """A smaller microbatch after the GPU memory ran out, at the same number of samples per step. Null: unknown."""

    outcome: Literal["would_change", "changed", "kept", "given_up"]
    before: MicroBatch
    after: MicroBatch | None  # null: the microbatch cannot be halved
    failed_at_step: int | None
    before_s: float | None  # step time
    after_s: float | None = None


class LateNodeAdaptation(msgspec.Struct, frozen=True, kw_only=True):
    """A late node without which an elastic job continues. Null: not measured yet. Gains are in samples per second."""

    outcome: Literal["would_leave", "leaves", "left", "kept", "undone"]
    node: str
    late_s: float  # per step: how much longer the other nodes wait than this one
    step_s: float
    num_ranks: int
    num_ranks_left: int
    expected_gain: float
    measured_gain: float | None = None


class PowerAdaptation(msgspec.Struct, frozen=True, kw_only=True):
    """A lower power limit on the GPUs of the job. Null: not measured yet."""

    outcome: Literal["would_try", "tried", "kept", "undone", "stopped"]
    gpus: tuple[int, ...]
    before_w: float
    limit_w: float
    before_s: float  # step time
    before_j: float  # energy per step of these GPUs
    after_s: float | None = None
    after_j: float | None = None
    problem: str = ""  # why it was stopped


class SemanticAdaptation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of what is trained, from one checkpoint on. Null: not measured yet."""

    outcome: Literal["would_change", "change", "changed", "kept", "undo", "undone"]
    change: Literal["local_sgd", "work_share"]
    every: int | None  # steps between two averages of the weights
    rank: int | None  # the late rank, and how much of its samples it keeps
    percent: int | None
    share: float  # the reason: the share of the step that is exposed communication, or that the others wait for it
    before_s: float  # step time, as a mean
    expected_gain: float  # at most, as a share of the step
    after_s: float | None = None
    measured_gain: float | None = None
