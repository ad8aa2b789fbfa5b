"""Compare the states in which trials begin: a trial that resumes from a checkpoint does different work from the first.

In: a trial's `StartState`s and those of earlier trials of the unchanged job. Out: a sentence that says what differs, or
None. The weights are compared only if the unchanged job begins with the same weights each time: a script without a seed
does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.change import ChangeSet
from flatout.records.trial import StartState

MIN_ALIKE = 2  # unchanged trials that must start with equal weights before weights are compared

Start = tuple[StartState, ...]


def other_start(start: Start, baselines: Sequence[Start], changes: ChangeSet) -> str | None:
    """Return how a trial's start differs from that of the unchanged job; None if it does not differ or is unknown.

    `baselines` are the starts of the unchanged job's trials so far, the first trial first. If the start of the first
    one is unknown, the next one that is known stands for it.
    """
    first = next((start for start in baselines if start), ())
    for mine, before in zip(start, first, strict=False):
        if mine.num_steps != before.num_steps:
            return (
                f"it began at optimizer step {mine.num_steps:,}, and the first trial at step {before.num_steps:,},"
                " as if it had resumed from a checkpoint: it is invalid"
            )
        if mine.has_state != before.has_state:
            which = "its optimizer had a state" if mine.has_state else "its optimizer had no state"
            return f"{which} before its first step, unlike that of the first trial: it is invalid"
    if any(change.argument is not None for change in changes.changes):
        return None  # the user's own argument may change the model
    if _have_fixed_weights(baselines) and _weights(start) not in (None, _weights(first)):
        return "it began with different weights than the first trial, as if resumed from a checkpoint: it is invalid"
    return None


def _have_fixed_weights(baselines: Sequence[Start]) -> bool:
    known = [_weights(start) for start in baselines]
    return len(known) >= MIN_ALIKE and known[0] is not None and all(weights == known[0] for weights in known)


def _weights(start: Start) -> tuple[str, ...] | None:
    """Return the digests of all optimizers' weights; None if one is unknown."""
    digests = [state.weights for state in start]
    known = tuple(digest for digest in digests if digest is not None)
    return known if known and len(known) == len(digests) else None
