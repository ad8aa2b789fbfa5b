"""Make the row of a step of any kind: the columns of the step file, from a `Step`, its loss and the memory counters.

`steady_state` makes the rows of ordinary steps, which are most steps of a training run, instead.
"""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from flatout.inside.recording.batches import Count
from flatout.inside.recording.losses import KeptLosses
from flatout.inside.recording.memory import MemoryCounts
from flatout.inside.recording.spells import SpellTimes


class CallFields(NamedTuple):
    """The columns of a step that is the call of a model."""

    model_ns: int | None = None
    num_known_tokens: int | None = None


NO_CALL = CallFields()


class Step(NamedTuple):
    """A finished step that is not written yet."""

    number: int
    start: int
    end: int
    loader_ns: int
    spells: SpellTimes
    num_batches: int
    counts: list[Count]  # samples and tokens of its last batches
    num_backward: int
    is_skipped: bool | None
    kind: str
    kept: KeptLosses | None
    call: CallFields = NO_CALL


def row_of(step: Step, loss: float | None, is_skipped: bool | None, memory: MemoryCounts | None) -> tuple[object, ...]:
    """Return the row of a step.

    `is_skipped` is the value of a GradScaler's flag, used if the step itself does not know; `memory` is None if the
    counters were not read.
    """
    if step.is_skipped is not None:
        is_skipped = step.is_skipped
    return (
        step.number,
        step.start,
        step.end - step.start,
        step.loader_ns,
        step.num_batches,
        *_counted(step),
        step.num_backward,
        None if is_skipped is None else int(is_skipped),
        step.kind,
        json_number(loss),
        *((None, None) if memory is None else (memory.peak_bytes, memory.num_retries)),
        *spell_columns(step.spells),
        *step.call,
    )


def spell_columns(spells: SpellTimes) -> tuple[int, ...]:
    """Return the columns of the step's spells, in the order of `STEP_COLUMNS`."""
    return (
        spells.checkpoint_ns,
        spells.loader_start_ns,
        spells.evaluation_ns,
        spells.collection_ns,
        spells.num_full_collections,
        spells.compilation_ns,
        spells.logging_ns,
        spells.num_loader_ends,
        spells.evaluation_loader_ns,
    )


def memory_columns(memory: MemoryCounts | None) -> str:
    """Return the two columns of the memory counters as text, for a row that is already text."""
    return "null,null" if memory is None else f"{memory.peak_bytes},{memory.num_retries}"


def json_number(value: float | None) -> float | str | None:
    """Return the number, or its text if JSON has no such number: infinities and NaN."""
    return value if value is None or isfinite(value) else str(value)


def _counted(step: Step) -> Count:
    """Return the samples and tokens of the step, from its last N batches if it had N backward passes.

    Earlier batches belong to an evaluation. A trainer can fetch all batches of a step before the first backward pass.
    """
    if len(step.counts) == 1:
        return step.counts[0]
    batches = step.counts[-step.num_backward :] if step.num_backward else step.counts
    samples = [count for count, _ in batches if count is not None]
    tokens = [count for _, count in batches if count is not None]
    return sum(samples) if samples else None, sum(tokens) if tokens else None
