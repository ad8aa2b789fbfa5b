"""The data-quality notes of a diagnosis; a note that several ranks share is listed once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flatout.records.events import Quality


class SharedNote(msgspec.Struct, frozen=True, kw_only=True):
    problem: str
    effect: str
    ranks: tuple[int, ...]  # empty: the note concerns the job


def shared_notes(notes: Iterable[Quality]) -> tuple[SharedNote, ...]:
    """Return one note for each (problem, effect), with its ranks, in the order of first appearance."""
    ranks_of_note: dict[tuple[str, str], set[int]] = {}
    for note in notes:
        ranks = ranks_of_note.setdefault((note.problem, note.effect), set())
        if note.rank is not None:
            ranks.add(note.rank)
    return tuple(
        SharedNote(problem=problem, effect=effect, ranks=tuple(sorted(ranks)))
        for (problem, effect), ranks in ranks_of_note.items()
    )
