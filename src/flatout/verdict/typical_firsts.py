"""Say for which work the first occurrence in a job takes as long as the later ones, so that it can stand for them.

In: the spells that hooks saw in runs of a job. Out: the kinds, or whether it holds for work of several kinds. The first
occurrence often has costs that do not return: a loader's first start, a compilation. So trials that reach only the
first one do not show what the work costs, unless a longer run of the job, such as its profile, shows that the first is
like the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median

from flatout.records.trial import SpellKind, StepSpell

MOST_DIFFERENT = 4 / 3  # first over later, or later over first


def typical_kinds(spells: Sequence[StepSpell]) -> tuple[SpellKind, ...]:
    """Return the kinds whose first spell in this run took as long as the later ones; not those that took no time."""
    by_kind: dict[SpellKind, dict[int, float]] = {}
    for spell in spells:
        seconds = by_kind.setdefault(spell.kind, {})
        seconds[spell.step] = seconds.get(spell.step, 0.0) + spell.seconds
    return tuple(kind for kind, seconds in by_kind.items() if _is_typical(seconds))


def is_first_typical(
    runs: Sequence[Mapping[int, float]], timed: Collection[SpellKind], known: Collection[SpellKind]
) -> bool:
    """Whether the first occurrence of some work takes as long as the later ones, in all runs that show both.

    `runs` has the seconds of each run's occurrences, by step. If no run shows both, it is so if it is `known` of all
    kinds of the work that hooks `timed`.
    """
    shown = [_is_typical(seconds) for seconds in runs if len(seconds) > 1 and any(seconds.values())]
    if shown:
        return all(shown)
    return bool(timed) and set(timed) <= set(known)


def _is_typical(seconds: Mapping[int, float]) -> bool:
    in_order = [seconds[step] for step in sorted(seconds)]
    if len(in_order) < 2 or in_order[0] <= 0:
        return False
    later = median(in_order[1:])
    return in_order[0] / MOST_DIFFERENT <= later <= in_order[0] * MOST_DIFFERENT
