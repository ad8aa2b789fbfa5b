"""Find the ranks that are late for causes that no other finding covers, the steps, and whether the ranks take turns.

In: the context of a diagnosis. Out: ranks and steps. One rank is a straggler only if the others do not make it wait as
long as it makes them wait; otherwise the ranks are late in turn, and replacing one of them would change nothing.
"""

from __future__ import annotations

from collections import defaultdict

from flatout.diagnose.context import DiagnosisContext

# Ranks take turns if the shorter of their waits for each other is at least this share of the longer one.
MIN_MUTUAL_SHARE = 0.5
MIN_LATE_SHARE = 0.02  # share of a step: a rank is late in a step if another rank waits at least this long for it


def late_steps(context: DiagnosisContext) -> dict[int, list[int]]:
    """Return the steps in which each rank was late, by rank."""
    waits: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for piece in context.job.slices:
        if piece.step is not None and context.is_straggling(piece.part):
            waits[piece.blamed_rank, piece.step][piece.waiting_rank] += piece.wait_ns / 1e9
    late: dict[int, list[int]] = defaultdict(list)
    for (rank, step), by_waiting in sorted(waits.items()):
        if max(by_waiting.values()) >= MIN_LATE_SHARE * context.step_s:
            late[rank].append(step)
    return dict(late)


def groups_late_in_turn(context: DiagnosisContext) -> list[tuple[int, ...]]:
    """Return the groups of ranks that wait for each other in turn, each with at least two ranks."""
    unvisited = [rank for rank in context.late_ranks() if context.lateness(rank) > 0]
    partners = {rank: [other for other in unvisited if _take_turns(context, rank, other)] for rank in unvisited}
    groups = []
    while unvisited:
        group = {unvisited[0]}
        frontier = [unvisited[0]]
        while frontier:
            new = [other for other in partners[frontier.pop()] if other not in group]
            group.update(new)
            frontier += new
        unvisited = [rank for rank in unvisited if rank not in group]
        if len(group) > 1:
            groups.append(tuple(sorted(group)))
    return groups


def _take_turns(context: DiagnosisContext, one: int, other: int) -> bool:
    if one == other:
        return False
    waits = sorted((_wait_s(context, one, other), _wait_s(context, other, one)))
    return waits[0] > 0 and waits[0] >= MIN_MUTUAL_SHARE * waits[1]


def _wait_s(context: DiagnosisContext, waiting: int, late: int) -> float:
    """Return the seconds per step that one rank waits for another for causes that no other finding covers."""
    return sum(
        seconds
        for (rank, part), seconds in context.waits_for[late].items()
        if rank == waiting and context.is_straggling(part)
    )
