"""Divide an epoch into batches of samples of like length, each sample once, with equal numbers of batches on all ranks.

In: the order of the epoch's samples on all ranks together, their lengths, the number of ranks, and either the samples
of a batch or a budget of tokens. Out: the batches of each rank. All ranks plan alike, from the same order. Batches of
one step have like lengths on all ranks, so that no rank waits for a longer one. Nothing here draws from a random
generator of the job.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

POOL_STEPS = 50  # samples are sorted within this many steps only: the order of the epoch stays random beyond

Batch = list[int]
Step = list[Batch]  # one batch for each rank


def plan_batches(
    order: Sequence[int],
    lengths: Sequence[int],
    *,
    batch_size: int,
    num_ranks: int,
    max_tokens: int | None = None,
    drop_last: bool = False,
) -> list[Step]:
    """Return the steps of the epoch.

    With `max_tokens`, a batch has as many samples as fit, if each takes the length of the longest; otherwise it has
    `batch_size`. With `drop_last`, samples that do not fill a step of whole batches are skipped.
    """
    per_pool = POOL_STEPS * batch_size * num_ranks
    draw = random.Random(zlib.crc32(repr(order[:per_pool]).encode()))
    steps: list[Step] = []
    rest: list[int] = []
    for begin in range(0, len(order), per_pool):
        pool = sorted([*rest, *order[begin : begin + per_pool]], key=lambda sample: (-lengths[sample], sample))
        steps_of_pool, rest = _steps_of(pool, lengths, batch_size, num_ranks, max_tokens)
        draw.shuffle(steps_of_pool)
        steps += steps_of_pool
    if rest and not drop_last:
        _add_rest(steps, rest, num_ranks, has_budget=max_tokens is not None)
    return steps


def _steps_of(
    pool: Sequence[int], lengths: Sequence[int], batch_size: int, num_ranks: int, max_tokens: int | None
) -> tuple[list[Step], list[int]]:
    """Cut samples, the longest first, into steps; return also the shortest, which do not fill a step."""
    steps = []
    begin = 0
    while begin < len(pool):
        size = batch_size
        if max_tokens is not None:
            most = (len(pool) - begin) // num_ranks
            size = max(min(max_tokens // max(lengths[pool[begin]], 1), most), 1)
        end = begin + size * num_ranks
        if end > len(pool):
            break
        steps.append([list(pool[begin + rank * size : begin + (rank + 1) * size]) for rank in range(num_ranks)])
        begin = end
    return steps, list(pool[begin:])


def _add_rest(steps: list[Step], rest: list[int], num_ranks: int, *, has_budget: bool) -> None:
    """Add the samples that fill no step: as a last step of smaller batches, or to a step that is there."""
    if len(rest) >= num_ranks:
        steps.append([rest[rank::num_ranks] for rank in range(num_ranks)])
        return
    if not steps:  # fewer samples than ranks: each rank needs one
        steps.append([[rest[rank % len(rest)]] for rank in range(num_ranks)])
        return
    if not has_budget:
        steps[-1:] = [_dealt([sample for batch in steps[-1] for sample in batch] + rest, num_ranks)]
        return
    # A step of one sample for each rank is always within the budget. What it lacks comes from the step of most samples.
    place = max(range(len(steps)), key=lambda number: len(steps[number][0]))
    samples = [sample for batch in steps[place] for sample in batch]
    num_lacking = num_ranks - len(rest) if len(samples) >= 2 * num_ranks else 0
    if not num_lacking:
        steps[place] = _dealt(samples + rest, num_ranks)
        return
    steps[place] = _dealt(samples[:-num_lacking], num_ranks)
    steps.append(_dealt(rest + samples[-num_lacking:], num_ranks))


def _dealt(samples: list[int], num_ranks: int) -> Step:
    """Give each rank its share of consecutive samples; the shares differ by one sample at most."""
    ends = [(rank + 1) * len(samples) // num_ranks for rank in range(num_ranks)]
    begins = [0, *ends[:-1]]
    return [samples[begin:end] for begin, end in zip(begins, ends, strict=True)]


def padding_share(batches: Sequence[Batch], lengths: Sequence[int]) -> float:
    """Return the share of the tokens of padded batches that are padding."""
    used = sum(lengths[sample] for batch in batches for sample in batch)
    padded = sum(len(batch) * max(lengths[sample] for sample in batch) for batch in batches)
    return 1 - used / padded if padded else 0.0


def plain_batches(order: Sequence[int], *, batch_size: int, num_ranks: int) -> list[Batch]:
    """Return the batches that torch makes of the same order, of all ranks."""
    batches = []
    for rank in range(num_ranks):
        of_rank = order[rank::num_ranks]
        batches += [list(of_rank[begin : begin + batch_size]) for begin in range(0, len(of_rank), batch_size)]
    return batches
