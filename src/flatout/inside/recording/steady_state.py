"""Make the rows of ordinary steps in one pass: nearly all steps of a training run are ordinary.

In: the recorder's notes of half a second. Out: rows of the step file as text, or None if the notes hold anything but
ordinary steps. An ordinary step has at most one batch, one backward pass and one step of the only optimizer. Processing
such steps event by event, like all other steps, would cost several times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flatout.inside.recording.batches import count_shape
from flatout.inside.recording.spells import NO_SPELLS
from flatout.inside.recording.step_rows import NO_CALL, spell_columns

Note = tuple[Any, ...]
_OrdinaryStep = tuple[int, int, str, Any]  # end, time in the loader, columns of its batch, scalar kept of its loss
_NO_BATCH = "0,null,null"
_NO_SPELLS = ",".join([*map(str, spell_columns(NO_SPELLS)), *("null" for _ in NO_CALL)])


class NoteKinds(NamedTuple):
    """The first element of the notes of the three events of an ordinary step."""

    tensors: object
    backward: object
    optimizer: object


class SteadyRows(NamedTuple):
    rows: list[str]
    times_ns: list[int]  # of each step
    start: int  # start of the current step


def steady_rows(
    notes: Sequence[Note],
    kinds: NoteKinds,
    *,
    thread: int,
    optimizer: int,
    number: int,
    start: int,
    memory: str,
    loss_of: Callable[[int, Any], str],
) -> SteadyRows | None:
    """Return the rows of the steps in the notes; None if the notes hold anything else.

    The first step has number `number` and began at `start`. `memory` holds the memory columns of the last row.
    `loss_of` returns the loss of a step, from its number and the scalar kept of it.
    """
    steps = _ordinary_steps(notes, kinds, (thread, optimizer, None, None))
    if not steps:
        return None
    rows, times_ns = [], []
    for end, loader_ns, batch, kept in steps:
        loss = "null" if kept is None else loss_of(number, kept)
        rows.append(f'[{number},{start},{end - start},{loader_ns},{batch},1,null,"",{loss},null,null,{_NO_SPELLS}]')
        times_ns.append(end - start)
        number += 1
        start = end
    rows[-1] = rows[-1].replace(f"null,null,{_NO_SPELLS}]", f"{memory},{_NO_SPELLS}]")
    return SteadyRows(rows, times_ns, start)


def _ordinary_steps(
    notes: Sequence[Note], kinds: NoteKinds, optimizer_note: tuple[object, ...]
) -> list[_OrdinaryStep] | None:
    """Return the steps in the notes; None if the notes hold anything else, or end within a step.

    `optimizer_note` holds the elements after the time in the note of an optimizer's step.
    """
    tensors, backward, optimized = kinds
    if not notes or notes[-1][0] is not optimized:
        return None
    steps: list[_OrdinaryStep] = []
    loader_ns, batch, loss, has_passed = 0, _NO_BATCH, None, False
    last_shape = last_dtype = None
    last_batch = ""
    for note in notes:
        kind = note[0]
        if kind is tensors:
            if batch is not _NO_BATCH or has_passed:
                return None
            _, began, ended, shape, dtype = note
            if shape != last_shape or dtype is not last_dtype:
                last_shape, last_dtype = shape, dtype
                samples, tokens = count_shape(shape, dtype)
                last_batch = f"1,{_json_count(samples)},{_json_count(tokens)}"
            loader_ns, batch = ended - began, last_batch
        elif kind is backward:
            if has_passed:
                return None
            has_passed, loss = True, note[2]
        elif kind is optimized and has_passed and note[2:] == optimizer_note:
            steps.append((note[1], loader_ns, batch, loss))
            loader_ns, batch, loss, has_passed = 0, _NO_BATCH, None, False
        else:
            return None
    return steps


def _json_count(count: int | None) -> str:
    return "null" if count is None else str(count)
