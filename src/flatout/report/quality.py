"""The data-quality notes of a diagnosis, those that many ranks share as one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flatout.records.events import Quality


class SharedNote(msgspec.Struct, frozen=True, kw_only=True):
    problem: str
    effect: str
    ranks: tuple[int, ...]  # empty: of the job as a whole


def shared_notes(notes: Iterable[Quality]) -> tuple[SharedNote, ...]:
    """One note for each (problem, effect), with its ranks, in the order of first appearance."""
    ranks: dict[tuple[str, str], set[int]] = {}
    for note in notes:
        seen = ranks.setdefault((note.problem, note.effect), set())
        if note.rank is not None:
            seen.add(note.rank)
    return tuple(
        SharedNote(problem=problem, effect=effect, ranks=tuple(sorted(seen)))
        for (problem, effect), seen in ranks.items()
    )
