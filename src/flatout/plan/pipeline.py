"""Simulate a pipeline schedule: when each stage computes which operation, and when it waits.

In: the number of stages, micro-batches and chunks, and how long a stage's forward and backward take. Out: intervals.
Every stage executes its operations in a fixed order, as in the frameworks' schedules; an operation begins when its
stage is free and its inputs have arrived. Sends take no time here: the cost model accounts for them separately.

Orders: GPipe (Huang et al., arXiv 1811.06965); 1F1B and interleaved 1F1B (Narayanan et al., arXiv 2104.04473, 2.2, with
the order of micro-batches in Megatron-LM's `schedules.py`); zero-bubble H1 (Qi et al., arXiv 2401.10241, 2.2), in which
the weight gradients are delayed by as many micro-batches as the stage's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flatout.records.plan_details import PipelineInterval

# Kinds of operations: forward, backward (of inputs only, if weight gradients are separate), weight gradients.
FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class Operation(NamedTuple):
    """One operation of a stage on one micro-batch."""

    kind: str
    chunk: int  # of the stage
    micro_batch: int


def simulate(
    num_stages: int,
    num_micro_batches: int,
    num_chunks: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    schedule: str = "1f1b",
    weights_share: float = 0.5,
) -> tuple[tuple[PipelineInterval, ...], ...]:
    """Return the intervals of each stage in chronological order.

    `forward_s` and `backward_s` have one value per stage: the time of one micro-batch through all chunks of the stage.
    `weights_share` is the share of the backward that zero-bubble defers.
    """
    defers_weights = schedule == "zero-bubble"
    stages = []
    for stage in range(num_stages):
        backward_chunk_s = backward_s[stage] / num_chunks
        lengths_s = {
            FORWARD: forward_s[stage] / num_chunks,
            BACKWARD: backward_chunk_s * (1.0 - weights_share if defers_weights else 1.0),
            WEIGHTS: backward_chunk_s * weights_share,
        }
        order = _order(schedule, stage, num_stages, num_micro_batches, num_chunks)
        stages.append(_Stage(stage, order, lengths_s, num_stages, num_chunks))
    ends_s: dict[tuple[int, Operation], float] = {}
    num_run = 1
    while num_run:
        num_run = sum(stage.advance(ends_s) for stage in stages)
    assert all(stage.is_done for stage in stages), "the stages' orders wait for each other"
    return tuple(tuple(stage.intervals) for stage in stages)


class _Stage:
    """The state of one stage during the simulation."""

    def __init__(
        self, number: int, order: list[Operation], lengths_s: dict[str, float], num_stages: int, num_chunks: int
    ) -> None:
        self._number, self._order, self._lengths_s = number, order, lengths_s
        self._num_stages, self._num_chunks = num_stages, num_chunks
        self._free_s = 0.0
        self.intervals: list[PipelineInterval] = []

    @property
    def is_done(self) -> bool:
        return len(self.intervals) == len(self._order)

    def advance(self, ends_s: dict[tuple[int, Operation], float]) -> int:
        """Run operations until one must wait for another that has not finished; return how many ran."""
        num_before = len(self.intervals)
        for operation in self._order[num_before:]:
            needed = _needs(self._number, operation, self._num_stages, self._num_chunks)
            if any(each not in ends_s for each in needed):
                break
            start_s = max([self._free_s, *(ends_s[each] for each in needed)])
            end_s = start_s + self._lengths_s[operation.kind]
            self.intervals.append(
                PipelineInterval(
                    kind=operation.kind,
                    chunk=operation.chunk,
                    micro_batch=operation.micro_batch,
                    start_s=start_s,
                    end_s=end_s,
                )
            )
            ends_s[self._number, operation] = self._free_s = end_s
        return len(self.intervals) - num_before


def bubble_share(intervals: Sequence[Sequence[PipelineInterval]]) -> float:
    """Return the idle share of all stages' time, from the start of the first operation to the end of the last."""
    last_end_s = max(stage[-1].end_s for stage in intervals)
    busy_s = sum(interval.end_s - interval.start_s for stage in intervals for interval in stage)
    return 1.0 - busy_s / (last_end_s * len(intervals))


def most_in_flight(intervals: Sequence[PipelineInterval]) -> int:
    """Return the maximum number of micro-batch chunks whose activations a stage holds at once.

    With deferred weight gradients, the activations count as held until the input gradient is done, because the part
    that the weight gradient still needs is small in comparison.
    """
    held = most = 0
    for interval in intervals:
        held += {FORWARD: 1, BACKWARD: -1, WEIGHTS: 0}[interval.kind]
        most = max(most, held)
    return most


def _needs(stage: int, operation: Operation, num_stages: int, num_chunks: int) -> list[tuple[int, Operation]]:
    """Return the stages and operations that an operation waits for.

    Chunk c of stage s is part c * num_stages + s of the model.
    """
    kind, chunk, micro_batch = operation
    own_forward = (stage, Operation(FORWARD, chunk, micro_batch))
    if kind == WEIGHTS:
        return [(stage, Operation(BACKWARD, chunk, micro_batch))]
    part = chunk * num_stages + stage
    if kind == FORWARD:
        return [_operation_of_part(part - 1, FORWARD, micro_batch, num_stages)] if part else []
    if part == num_stages * num_chunks - 1:
        return [own_forward]
    return [_operation_of_part(part + 1, BACKWARD, micro_batch, num_stages), own_forward]


def _operation_of_part(part: int, kind: str, micro_batch: int, num_stages: int) -> tuple[int, Operation]:
    chunk, stage = divmod(part, num_stages)
    return stage, Operation(kind, chunk, micro_batch)


def _order(schedule: str, stage: int, num_stages: int, num_micro: int, num_chunks: int) -> list[Operation]:
    """Return the operations of a stage in the order of execution."""
    if num_chunks > 1:
        return _interleaved(stage, num_stages, num_micro, num_chunks)
    forwards = [Operation(FORWARD, 0, micro) for micro in range(num_micro)]
    backwards = [Operation(BACKWARD, 0, micro) for micro in range(num_micro)]
    if schedule == "gpipe":
        return [*forwards, *backwards]
    num_warm_up = min(num_stages - 1 - stage, num_micro)
    order = _alternating(forwards, backwards, num_warm_up)
    return _with_late_weights(order, stage, num_micro) if schedule == "zero-bubble" else order


def _alternating(forwards: list[Operation], backwards: list[Operation], num_warm_up: int) -> list[Operation]:
    """Return the warm-up's forwards, then alternating forwards and backwards, then the remaining backwards."""
    order = forwards[:num_warm_up]
    for number, backward in enumerate(backwards):
        order += forwards[num_warm_up + number : num_warm_up + number + 1]
        order.append(backward)
    return order


def _with_late_weights(order: list[Operation], stage: int, num_micro: int) -> list[Operation]:
    """Return the order with each weight gradient inserted `stage` micro-batches after its backward."""
    with_weights: list[Operation] = []
    for operation in order:
        with_weights.append(operation)
        if operation.kind == BACKWARD and operation.micro_batch >= stage:
            with_weights.append(Operation(WEIGHTS, 0, operation.micro_batch - stage))
    first_left = max(num_micro - stage, 0)
    return with_weights + [Operation(WEIGHTS, 0, micro) for micro in range(first_left, num_micro)]


def _interleaved(stage: int, num_stages: int, num_micro: int, num_chunks: int) -> list[Operation]:
    """Return the order of interleaved chunks, as in Megatron-LM.

    Micro-batches are grouped by the number of stages, and each group passes through one chunk after another.
    """
    size_of_group = num_stages * num_chunks

    def operation_at(number: int, kind: str) -> Operation:
        group, within = divmod(number, size_of_group)
        chunk, member = divmod(within, num_stages)
        return Operation(kind, chunk if kind == FORWARD else num_chunks - 1 - chunk, group * num_stages + member)

    total = num_micro * num_chunks
    forwards = [operation_at(number, FORWARD) for number in range(total)]
    backwards = [operation_at(number, BACKWARD) for number in range(total)]
    num_warm_up = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
    return _alternating(forwards, backwards, num_warm_up)
