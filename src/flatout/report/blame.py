"""Which ranks wait for which, per step: the blame of a diagnosis as sums and as a matrix.

In: `Diagnosis.blame` (seconds over all complete steps). Out: seconds per step of the waiting rank. It judges nothing.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from flatout.records.diagnosis import Diagnosis
from flatout.report.rows import Rows

SMALLEST_WAIT = 0.05  # share of the longest wait for the same cause
SMALLEST_SHARE = 0.02  # of the step: the smallest cost of a finding
STRONGEST_SHARE = 0.5  # of the step


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting that one part of one rank caused."""

    blamed_rank: int
    part: str
    waiting_ranks: tuple[int, ...]  # without ranks that wait very little compared with the longest waiting rank
    wait_s: float  # per step, mean over the waiting ranks
    mean_wait_s: float  # per step, mean over all ranks of the job


class BlameCell(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a rank (or the mean rank of a group) waits for the blamed rank."""

    wait_s: float  # per step
    share: float  # of the waiting row's step
    parts_s: tuple[tuple[str, float], ...]  # largest first


class BlameMatrix(msgspec.Struct, frozen=True, kw_only=True):
    columns: tuple[int, ...]  # blamed ranks that at least one rank waits for
    num_other: int  # blamed ranks without a separate column, summed in the last column
    cells: tuple[tuple[BlameCell | None, ...], ...]  # one row per row of `Rows.rows`


def _steps(diagnosis: Diagnosis) -> dict[int, int]:
    return {rank.rank: max(1, rank.num_steps) for rank in diagnosis.ranks}


def charges(diagnosis: Diagnosis) -> tuple[Charge, ...]:
    """Return the blame by blamed rank and part, largest first."""
    num_steps = _steps(diagnosis)
    waits: dict[tuple[int, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for blame in diagnosis.blame:
        if blame.wait_s > 0:
            wait_s = blame.wait_s / num_steps.get(blame.waiting_rank, 1)
            waits[blame.blamed_rank, blame.part][blame.waiting_rank] += wait_s
    num_ranks = max(1, len(diagnosis.ranks))
    result = []
    for (rank, part), by_rank in waits.items():
        longest_s = max(by_rank.values())
        listed = {waiting: wait_s for waiting, wait_s in by_rank.items() if wait_s >= SMALLEST_WAIT * longest_s}
        result.append(
            Charge(
                blamed_rank=rank,
                part=part,
                waiting_ranks=tuple(sorted(listed)),
                wait_s=sum(listed.values()) / len(listed),
                mean_wait_s=sum(by_rank.values()) / num_ranks,
            )
        )
    return tuple(sorted(result, key=lambda charge: (-charge.mean_wait_s, charge.blamed_rank, charge.part)))


def matrix(diagnosis: Diagnosis, rows: Rows, *, most_columns: int) -> BlameMatrix:
    """Return the waiting rows against the blamed ranks. The ranks that others wait for longest get the columns."""
    num_steps = _steps(diagnosis)
    row_of = {rank: index for index, row in enumerate(rows.rows) for rank in row.ranks}
    by_rank: dict[int, float] = defaultdict(float)
    for blame in diagnosis.blame:
        by_rank[blame.blamed_rank] += blame.wait_s / num_steps.get(blame.waiting_rank, 1)
    ordered = sorted((rank for rank in by_rank if by_rank[rank] > 0), key=lambda rank: (-by_rank[rank], rank))
    columns = tuple(sorted(ordered[:most_columns]))
    num_other = len(ordered) - len(columns)
    column_of = {rank: index for index, rank in enumerate(columns)}
    sums: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for blame in diagnosis.blame:
        if blame.wait_s <= 0 or blame.waiting_rank not in row_of:
            continue
        row = row_of[blame.waiting_rank]
        wait_s = blame.wait_s / num_steps.get(blame.waiting_rank, 1) / len(rows.rows[row].ranks)
        sums[row, column_of.get(blame.blamed_rank, len(columns))][blame.part] += wait_s
    num_columns = len(columns) + 1 if num_other > 0 else len(columns)
    cells = tuple(
        tuple(_cell(sums.get((index, column)), row.duration_s) for column in range(num_columns))
        for index, row in enumerate(rows.rows)
    )
    return BlameMatrix(columns=columns, num_other=num_other, cells=cells)


def _cell(parts_s: dict[str, float] | None, step_s: float) -> BlameCell | None:
    if not parts_s:
        return None
    ordered = sorted(parts_s.items(), key=lambda item: (-item[1], item[0]))
    wait_s = sum(parts_s.values())
    return BlameCell(wait_s=wait_s, share=wait_s / step_s if step_s else 0.0, parts_s=tuple(ordered))
