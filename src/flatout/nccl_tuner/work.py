"""Which collectives a job uses: groups and sizes from its traces, or standard ones.

In: the attribution of a recording, or a number of ranks. Out: `CollectiveWork`. Sizes are grouped by powers of two, and
of each group the size that moves most bytes is measured. Only collectives that NCCL asks a tuner about are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flatout.errors import InputError
from flatout.records.collective_table import COLLECTIVES
from flatout.records.job import JobAttribution
from flatout.records.nccl_tuning import Case, CollectiveWork, GroupShape
from flatout.records.timeline import CommunicationCall

STANDARD_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
STANDARD_SIZES = tuple(4096 * 4**step for step in range(9))  # 4 KiB to 256 MiB
MAX_SIZES = 12  # of one collective in one shape of groups
MAX_SHAPES = 4

_Use = tuple[str, int]  # a collective and the number of its group's ranks


def standard_work(num_ranks: int, *, largest_bytes: int = STANDARD_SIZES[-1]) -> CollectiveWork:
    """Return the usual collectives of data-parallel training among all ranks, in sizes from 4 KiB to 256 MiB."""
    shape = GroupShape(groups=(tuple(range(num_ranks)),))
    sizes = [size for size in STANDARD_SIZES if size <= largest_bytes]
    cases = [
        Case(collective=collective, shape=0, num_bytes=size) for collective in STANDARD_COLLECTIVES for size in sizes
    ]
    return CollectiveWork(
        shapes=(shape,),
        cases=tuple(cases),
        source="standard collectives and sizes, because no recording was given",
        is_standard=True,
    )


def work_of(job: JobAttribution, num_ranks: int, source: str) -> CollectiveWork:
    """Return the collectives in the traces of a job. Raises InputError if there is none that a tuner is asked about.

    `num_ranks` are those that will measure; groups with more ranks than that are skipped, with a note.
    """
    uses, groups, others = _uses(job)
    notes = []
    if others:
        listed = ", ".join(f"{count} x {operation}" for operation, count in others.most_common())
        notes.append(f"NCCL does not ask a tuner about {listed}, which stay as they are")
    shapes: list[GroupShape] = []
    cases: list[Case] = []
    by_volume = sorted(uses, key=lambda use: -sum(size * count for size, count in uses[use].items()))
    sizes_of_groups = list(dict.fromkeys(size for _, size in by_volume))
    for size in sizes_of_groups:
        if size > num_ranks:
            notes.append(f"groups of {size} ranks are not measured, because {num_ranks} ranks measure")
            continue
        if len(shapes) == MAX_SHAPES:
            notes.append(f"groups of {size} ranks are not measured: {MAX_SHAPES} sizes of groups move more bytes")
            continue
        shapes.append(_shape(groups[size], size, num_ranks))
        for use in by_volume:
            if use[1] == size:
                cases += _cases(use[0], len(shapes) - 1, uses[use], _num_steps(job))
    if not cases:
        raise InputError(
            "the recording has no collective that NCCL asks a tuner about, among the ranks that measure",
            hint="; ".join(notes) or "record a job with several ranks: flatout profile",
        )
    return CollectiveWork(
        shapes=tuple(shapes), cases=tuple(cases), source=source, is_standard=False, notes=tuple(notes)
    )


def _uses(job: JobAttribution) -> tuple[dict[_Use, Counter[int]], dict[int, set[tuple[int, ...]]], Counter[str]]:
    """Return the calls per rank by size for each use, the groups of each size, and other operations."""
    uses: dict[_Use, Counter[int]] = {}
    groups: dict[int, set[tuple[int, ...]]] = {}
    others: Counter[str] = Counter()
    for timeline in job.timelines:
        for call in timeline.communication.calls:
            size = _group_size(call, job)
            if not call.num_bytes or size is None or size < 2:
                continue
            if call.operation not in COLLECTIVES:
                others[call.operation] += 1
                continue
            uses.setdefault((call.operation, size), Counter())[call.num_bytes] += 1
            groups.setdefault(size, set())
            if call.ranks:
                groups[size].add(tuple(call.ranks))
    return uses, groups, others


def _group_size(call: CommunicationCall, job: JobAttribution) -> int | None:
    if call.ranks:
        return len(call.ranks)
    return call.group_size or job.world_size


def _num_steps(job: JobAttribution) -> int:
    """Return the number of traced steps of all ranks together, by which calls are counted."""
    return max(1, sum(len(timeline.steps) for timeline in job.timelines))


def _shape(groups: Iterable[tuple[int, ...]], size: int, num_ranks: int) -> GroupShape:
    """Return groups of this size that do not overlap: those of the job if all are among the ranks that measure."""
    chosen: list[tuple[int, ...]] = []
    for ranks in sorted(groups):
        is_free = not any(set(ranks) & set(other) for other in chosen)
        if max(ranks) < num_ranks and is_free:
            chosen.append(tuple(sorted(ranks)))
    if not chosen:
        chosen = [tuple(range(first, first + size)) for first in range(0, num_ranks - size + 1, size)]
    return GroupShape(groups=tuple(chosen))


def _cases(collective: str, shape: int, calls: Counter[int], num_steps: int) -> list[Case]:
    """Return one case for each power of two, with the size that moves most bytes and the calls of all its sizes."""
    by_octave: dict[int, Counter[int]] = {}
    for size, count in calls.items():
        by_octave.setdefault(size.bit_length(), Counter())[size] += count
    cases = []
    for sizes in by_octave.values():
        size = max(sizes, key=lambda each: (each * sizes[each], each))
        per_step = sum(sizes.values()) / num_steps
        cases.append(Case(collective=collective, shape=shape, num_bytes=size, calls_per_step=per_step))
    cases.sort(key=lambda case: -(case.num_bytes * (case.calls_per_step or 0)))
    return sorted(cases[:MAX_SIZES], key=lambda case: case.num_bytes)
