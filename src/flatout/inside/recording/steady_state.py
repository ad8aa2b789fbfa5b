"""The rows of the step file for steps of the plainest kind, made together in one pass.

Training is nearly all such steps: at most one batch, one backward pass, one optimizer's step, with nothing to do for
the recorder between them. Taken event by event, as all others are, they would cost a multiple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flatout.inside.recording.batches import count_shape

Note = tuple[Any, ...]


class NoteKinds(NamedTuple):
    """What the notes begin with, of the three kinds that there are here."""

    tensors: object
    backward: object
    optimizer: object


class SteadyRows(NamedTuple):
    rows: list[str]
    start: int  # of the step that runs now


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
    """From step `number`, which began at `start`; None where something else happened, too.

    `memory` are the last row's columns of it. `loss_of` gives the loss of a step, for what was taken of it.
    """
    tensors, backward, optimized = kinds
    if not notes or notes[-1][0] is not optimized:
        return None
    parts: list[
        tuple[int, int, str, Any]
    ] = []  # the end, in the loader, batches and counts, what was taken of the loss
    loader_ns, counts, taken, has_passed = 0, "0,null,null", None, False
    shape = dtype = None
    known = ""
    for note in notes:
        kind = note[0]
        if kind is tensors:
            if counts is known or has_passed:
                return None
            _, began, ended, its_shape, its_dtype = note
            if its_shape != shape or its_dtype is not dtype:
                shape, dtype = its_shape, its_dtype
                known = "1,{},{}".format(*("null" if one is None else one for one in count_shape(shape, dtype)))
            loader_ns, counts = ended - began, known
        elif kind is backward:
            if has_passed:
                return None
            has_passed, taken = True, note[2]
        elif kind is optimized and has_passed and note[2:] == (thread, optimizer, None, None):
            parts.append((note[1], loader_ns, counts, taken))
            loader_ns, counts, taken, has_passed = 0, "0,null,null", None, False
        else:
            return None
    rows = []
    for end, in_loader, counted, loss in parts:
        told = "null" if loss is None else loss_of(number, loss)
        rows.append(f'[{number},{start},{end - start},{in_loader},{counted},1,null,"",{told},null,null,0]')
        number += 1
        start = end
    rows[-1] = rows[-1].replace("null,null,0]", f"{memory},0]")
    return SteadyRows(rows, start)
