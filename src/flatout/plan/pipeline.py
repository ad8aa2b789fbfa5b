"""A pipeline schedule played through: when each stage computes what, and when it waits.

In: the number of stages, micro-batches and chunks, and how long a stage's forward and backward take. Out: intervals.
Every stage works through a fixed order of its own, as the frameworks' schedules do; an operation begins when its stage
is free and what it needs has arrived. Sends take no time here: the model charges them apart.

Orders: GPipe (Huang et al., arXiv 1811.06965); 1F1B and interleaved 1F1B (Narayanan et al., arXiv 2104.04473, 2.2, as
Megatron-LM's `schedules.py` deals the micro-batches); zero-bubble H1 (Qi et al., arXiv 2401.10241, 2.2), in which the
gradients of weights are a stage's number of micro-batches late.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.plan_details import PipelineInterval

# What an operation is: forward, backward (of inputs, where weights' gradients are apart), gradients of weights.
FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
Operation = tuple[str, int, int]  # kind, chunk of the stage, micro-batch


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
    """The intervals of each stage, in the order of time.

    `forward_s` and `backward_s` are of one micro-batch through all chunks of a stage, one value a stage.
    `weights_share` of the backward is what zero-bubble defers.
    """
    orders = [_order(schedule, stage, num_stages, num_micro_batches, num_chunks) for stage in range(num_stages)]
    splits = schedule == "zero-bubble"
    lengths_s = [
        {
            FORWARD: forward_s[stage] / num_chunks,
            BACKWARD: backward_s[stage] / num_chunks * (1.0 - weights_share if splits else 1.0),
            WEIGHTS: backward_s[stage] / num_chunks * weights_share,
        }
        for stage in range(num_stages)
    ]
    ends_s: dict[tuple[int, Operation], float] = {}
    done: list[list[PipelineInterval]] = [[] for _ in range(num_stages)]
    free_s = [0.0] * num_stages
    waiting = True
    while waiting:
        waiting = False
        for stage in range(num_stages):
            order, found = orders[stage], done[stage]
            while len(found) < len(order):
                operation = order[len(found)]
                needed = _needs(stage, operation, num_stages, num_chunks)
                if any(each not in ends_s for each in needed):
                    break
                start_s = max([free_s[stage], *(ends_s[each] for each in needed)])
                end_s = start_s + lengths_s[stage][operation[0]]
                found.append(
                    PipelineInterval(
                        kind=operation[0], chunk=operation[1], micro_batch=operation[2], start_s=start_s, end_s=end_s
                    )
                )
                ends_s[stage, operation] = free_s[stage] = end_s
                waiting = True
    assert all(len(found) == len(order) for found, order in zip(done, orders, strict=True)), "the orders wait in a ring"
    return tuple(tuple(found) for found in done)


def bubble_share(intervals: Sequence[Sequence[PipelineInterval]]) -> float:
    """Idle time of all stages over all their time, from the first operation to the last."""
    whole_s = max(one[-1].end_s for one in intervals) * len(intervals)
    return 1.0 - sum(each.end_s - each.start_s for one in intervals for each in one) / whole_s


def most_in_flight(intervals: Sequence[PipelineInterval]) -> int:
    """The most chunks of micro-batches whose activations one stage holds at once.

    With a deferred gradient of weights, the activations are held until the gradient of inputs is done: what the
    weights' gradient needs of them is small beside it.
    """
    held = most = 0
    for each in intervals:
        held += {FORWARD: 1, BACKWARD: -1, WEIGHTS: 0}[each.kind]
        most = max(most, held)
    return most


def _needs(stage: int, operation: Operation, num_stages: int, num_chunks: int) -> list[tuple[int, Operation]]:
    """The operations that one waits for. Chunk c of stage s is the model's part c * stages + s."""
    kind, chunk, micro = operation
    if kind == WEIGHTS:
        return [(stage, (BACKWARD, chunk, micro))]
    part = chunk * num_stages + stage
    if kind == FORWARD:
        return [((part - 1) % num_stages, (FORWARD, (part - 1) // num_stages, micro))] if part else []
    last = num_stages * num_chunks - 1
    if part == last:
        return [(stage, (FORWARD, chunk, micro))]
    return [((part + 1) % num_stages, (BACKWARD, (part + 1) // num_stages, micro)), (stage, (FORWARD, chunk, micro))]


def _order(schedule: str, stage: int, num_stages: int, num_micro: int, num_chunks: int) -> list[Operation]:
    if num_chunks > 1:
        return _interleaved(stage, num_stages, num_micro, num_chunks)
    forwards = [(FORWARD, 0, micro) for micro in range(num_micro)]
    backwards = [(BACKWARD, 0, micro) for micro in range(num_micro)]
    if schedule == "gpipe":
        return [*forwards, *backwards]
    warm = min(num_stages - 1 - stage, num_micro)
    order: list[Operation] = forwards[:warm]
    late = stage if schedule == "zero-bubble" else None
    for micro in range(num_micro):
        order += forwards[warm + micro : warm + micro + 1]
        order.append(backwards[micro])
        if late is not None and micro >= late:
            order.append((WEIGHTS, 0, micro - late))
    if late is not None:
        order += [(WEIGHTS, 0, micro) for micro in range(max(num_micro - late, 0), num_micro)]
    return order


def _interleaved(stage: int, num_stages: int, num_micro: int, num_chunks: int) -> list[Operation]:
    """Groups of as many micro-batches as stages go through one chunk after another (Megatron-LM's order)."""
    total = num_micro * num_chunks
    group = num_stages * num_chunks

    def at(number: int, kind: str) -> Operation:
        within = number % group
        chunk = within // num_stages
        micro = number // group * num_stages + within % num_stages
        return kind, chunk if kind == FORWARD else num_chunks - 1 - chunk, micro

    warm = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
    order = [at(number, FORWARD) for number in range(warm)]
    for number in range(total):
        if warm + number < total:
            order.append(at(warm + number, FORWARD))
        order.append(at(number, BACKWARD))
    return order
