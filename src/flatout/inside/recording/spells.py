"""Record rare events that lengthen a step: loader starts, evaluations, checkpoints, collections, compilations.

In: the times of these spells, and of the step's batches. Out: the nanoseconds of each kind in the step. They are
exclusive: a spell within another spell, such as a collection within an evaluation, belongs to the outer spell.

An evaluation is the time from `eval()` to `train()` of a module without a backward pass. Some frameworks restore the
mode of their modules in another way; there it ends with the request for the first batch that is trained on. Without
`eval()`, it is recognised by batches without a backward pass, if the script works between them. A loader that fetches
ahead does not count as an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LOADER_START, EVALUATION, CHECKPOINT, COLLECTION, COMPILATION, LOGGING = range(6)
_NUM_KINDS = 6
MIN_EVALUATION_BATCHES = 2
MIN_SHARE_BETWEEN_BATCHES = 0.05  # of an evaluation without `eval()`: the time in which the script does not load
_MAX_SPELLS = 4096  # kept for one step; more are dropped

Load = tuple[int, int]  # when the request for a batch began, and when it ended


class SpellTimes(NamedTuple):
    """The columns of a step, in nanoseconds except for the numbers."""

    loader_start_ns: int
    evaluation_ns: int
    checkpoint_ns: int
    collection_ns: int
    compilation_ns: int
    logging_ns: int
    num_full_collections: int
    num_loader_ends: int  # number of times that a loader ran out of batches, outside evaluations
    evaluation_loader_ns: int  # part of `evaluation_ns` in which a loader starts or ends


NO_SPELLS = SpellTimes(0, 0, 0, 0, 0, 0, 0, 0, 0)


class Spells:
    """The spells of the step that is not closed yet."""

    def __init__(self) -> None:
        self._spells: list[tuple[int, int, int]] = []  # began, ended, kind
        self._loads: list[Load] = []
        self._loader_ends: list[int] = []
        self._num_full_collections = 0
        self._evaluates_since = 0  # 0: no module is in evaluation mode
        self._evaluated_since = 0  # the same, for a module that was still in evaluation mode at a backward pass

    @property
    def is_empty(self) -> bool:
        has_modes = self._evaluates_since or self._evaluated_since
        return not (self._spells or self._loads or self._loader_ends or has_modes)

    def add(self, kind: int, began: int, ended: int) -> None:
        if len(self._spells) < _MAX_SPELLS:
            self._spells.append((began, ended, kind))

    def full_collection(self) -> None:
        self._num_full_collections += 1

    def load(self, began: int, ended: int) -> None:
        """Take the load of a batch."""
        if len(self._loads) < _MAX_SPELLS:
            self._loads.append((began, ended))

    def loader_ended(self, at: int) -> None:
        """Take the end of a loader's batches."""
        self._loader_ends.append(at)

    def evaluation_begins(self, at: int) -> None:
        self._evaluates_since = self._evaluates_since or at

    def evaluation_ends(self, at: int) -> None:
        """Take the call of `train()` on a module after `evaluation_begins`."""
        if self._evaluates_since:
            self.add(EVALUATION, self._evaluates_since, at)
            self._evaluates_since = 0

    def backward(self) -> None:
        """Take a backward pass, which does not belong to an evaluation."""
        if self._evaluates_since:
            self._evaluated_since, self._evaluates_since = self._evaluates_since, 0

    def close(self, num_backward: int) -> SpellTimes:
        """Return the columns of the step, and forget its spells."""
        if self.is_empty:
            return NO_SPELLS
        evaluation = self._evaluation_by_batches(num_backward)
        if evaluation is not None:
            self._spells.append((*evaluation, EVALUATION))
        by_kind = _exclusive(self._spells)
        evaluations = [(began, ended) for began, ended, kind in self._spells if kind == EVALUATION]
        ends = [at for at in self._loader_ends if not any(began <= at <= ended for began, ended in evaluations)]
        times = SpellTimes(
            loader_start_ns=by_kind[LOADER_START],
            evaluation_ns=by_kind[EVALUATION],
            checkpoint_ns=by_kind[CHECKPOINT],
            collection_ns=by_kind[COLLECTION],
            compilation_ns=by_kind[COMPILATION],
            logging_ns=by_kind[LOGGING],
            num_full_collections=self._num_full_collections,
            num_loader_ends=len(ends),
            evaluation_loader_ns=_loader_starts_within(evaluations, self._spells),
        )
        self._spells, self._loads, self._loader_ends = [], [], []
        self._num_full_collections = self._evaluates_since = self._evaluated_since = 0
        return times

    def _evaluation_by_batches(self, num_backward: int) -> Load | None:
        """Return when an evaluation without `train()` at its end began and ended, judged by the batches of the step."""
        num_extra = len(self._loads) - num_backward
        if num_extra < MIN_EVALUATION_BATCHES or not num_backward:
            return None
        if any(kind == EVALUATION for _, _, kind in self._spells):
            return None
        began, ended = self._loads[0][0], self._loads[num_extra][0]
        since = self._evaluates_since or self._evaluated_since
        if since:
            return min(began, since), ended
        loading = sum(load_ended - load_began for load_began, load_ended in self._loads[:num_extra])
        if ended - began - loading < MIN_SHARE_BETWEEN_BATCHES * (ended - began):
            return None
        return began, ended


def _loader_starts_within(evaluations: Sequence[Load], spells: Sequence[tuple[int, int, int]]) -> int:
    """Return the nanoseconds of loader starts within evaluations; parts that overlap count once."""
    starts = sorted((began, ended) for began, ended, kind in spells if kind == LOADER_START)
    total = covered_until = 0
    for began, ended in starts:
        from_ns = max(began, covered_until)
        inside = (min(ended, until) - max(from_ns, since) for since, until in evaluations)
        total += max(max(inside, default=0), 0)
        covered_until = max(covered_until, ended)
    return total


def _exclusive(spells: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the nanoseconds of each kind; a spell within another spell belongs to the outer spell."""
    by_kind = [0] * _NUM_KINDS
    covered_until = 0
    for began, ended, kind in sorted(spells, key=lambda spell: (spell[0], -spell[1])):
        by_kind[kind] += max(ended - max(began, covered_until), 0)
        covered_until = max(covered_until, ended)
    return by_kind
