"""Work that lengthens some steps of a job, such as an epoch's end: the steps that have it, and how often it returns."""

from __future__ import annotations

import msgspec

from flatout.records.trial import SpellKind
from flatout.verdict.periods import Flags, Period

MAX_SHARE_OF_STEPS = 1 / 3  # work in more of the steps belongs to the regular step
MIN_ABSENT = 5.0  # occurrences that an arm should have had, so that having none means that it has no such work
MIN_FOR_RATE = 3  # occurrences


class Work(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One kind of work, or several that always come together."""

    kinds: tuple[SpellKind, ...]
    is_due: dict[int, Flags]  # by trial: the measured steps that have it
    is_first: dict[int, Flags]  # by trial: of these, the one that is the first in the job
    period: dict[str, Period | None]  # by arm; None: unknown
    absent_in: frozenset[str] = frozenset()  # arms that would have had it by now
    hook_s: dict[str, float] = {}  # by arm: median of what the hooks measured in a step
    is_random: bool = False  # it hits any trial, whatever its arm

    def num_seen(self, index: int) -> int:
        return int(self.is_due[index].sum())

    def per_step(self, arm: str) -> float | None:
        """Return how often a step of the arm has the work; None: unknown."""
        if arm in self.absent_in:
            return 0.0
        period = self.period[arm]
        return None if period is None else period.per_step
