"""Say what a step takes, as phrases: a regular step, and the work that only some steps have, with its frequency.

In: `StepTime`. Out: phrases and sentences for the live log, the terminal and the HTML page.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout import units
from flatout.records.step_time import StepTime, WorkTime
from flatout.records.trial import SpellKind

MIN_SHARE = 0.01  # of the step: less is not worth a phrase

_EPOCH: frozenset[SpellKind] = frozenset({"epoch_end", "loader_start"})
_NOUNS: dict[SpellKind, str] = {
    "epoch_end": "epoch's boundary",
    "loader_start": "epoch's boundary",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "collection": "garbage collection",
    "compilation": "compilation",
    "logging": "logging",
    "unknown": "long step of unknown cause",
}


def work_name(kinds: Sequence[SpellKind]) -> str:
    """Name work by its kinds: `epoch's boundary (evaluation, checkpoint)`."""
    nouns = list(dict.fromkeys(_NOUNS[kind] for kind in kinds))
    epoch = [noun for noun in nouns if noun == _NOUNS["epoch_end"]]
    others = [noun for noun in nouns if noun not in epoch]
    if not epoch:
        return " and ".join(others)
    return epoch[0] + (f" ({', '.join(others)})" if others else "")


def period_words(period_steps: float) -> str:
    """Say how often work returns: `every 15 steps`."""
    steps = f"{period_steps:.0f}" if abs(period_steps - round(period_steps)) < 0.05 else f"{period_steps:.1f}"
    return f"every {steps} steps"


def work_phrase(work: WorkTime) -> str:
    """Say what work of some steps takes: `each epoch's boundary, every 32 steps: 954 ms more`."""
    often = period_words(work.period_steps)
    return f"each {work_name(work.kinds)}, {often}: {units.seconds(work.extra_s)} more"


def step_words(step: StepTime) -> str:
    """Say in a few words what a step takes: `336 ms per step: 176 ms, and 2.40 s more every 15 steps`."""
    work = _material(step)
    if not work:
        return f"{units.seconds(step.step_s)} per {'regular ' if step.unknown else ''}step"
    more = ", ".join(f"{units.seconds(one.extra_s)} more {period_words(one.period_steps)}" for one in work)
    return f"{units.seconds(step.step_s)} per step: {units.seconds(step.regular_s)}, and {more}"


def step_sentences(before: StepTime | None, after: StepTime | None, *, arrow: str = "->") -> tuple[str, ...]:
    """Compare the parts of a step in both arms; nothing where all steps are alike.

    `after` is None if no change was accepted: then the parts of the baseline are said.
    """
    if before is None:
        return ()
    names = _names(before, after)
    sentences = []
    if names:
        after_s = None if after is None else after.regular_s
        sentences.append(f"Regular step: {_change(before.regular_s, after_s, arrow)}.")
    for kinds in names:
        one, other = _work(before, kinds), None if after is None else _work(after, kinds)
        change = _change(_extra_s(one), None if after is None else _extra_s(other), arrow)
        periods = [period_words(work.period_steps) for work in (one, other) if work is not None]
        often = f" {arrow} ".join(dict.fromkeys(periods))
        sentences.append(f"Each {work_name(kinds)}, {often}: {change} more.")
    unknown = dict.fromkeys((*before.unknown, *(after.unknown if after is not None else ())))
    return (*sentences, *_unmeasured(tuple(unknown), are_others=("unknown",) in names))


def _names(before: StepTime, after: StepTime | None) -> list[tuple[SpellKind, ...]]:
    """Return the kinds of the work that matters in either arm, in the order of its cost."""
    work = [*_material(before), *(_material(after) if after is not None else ())]
    return list(dict.fromkeys(one.kinds for one in work))


def _material(step: StepTime) -> list[WorkTime]:
    return [work for work in step.work if work.per_step_s >= MIN_SHARE * step.step_s]


def _work(step: StepTime, kinds: tuple[SpellKind, ...]) -> WorkTime | None:
    return next((work for work in step.work if work.kinds == kinds), None)


def _extra_s(work: WorkTime | None) -> float:
    return 0.0 if work is None else work.extra_s


def _change(before_s: float, after_s: float | None, arrow: str) -> str:
    if after_s is None:
        return units.seconds(before_s)
    return f"{units.seconds(before_s)} {arrow} {units.seconds(after_s)}"


def _unmeasured(kinds: tuple[SpellKind, ...], *, are_others: bool = False) -> list[str]:
    """Say which work is not part of the step, or is assumed to cost in one arm what it costs in the other.

    Long steps of unknown cause may be of several sizes: with `are_others`, those that return are named before.
    """
    sentences = []
    if _EPOCH.intersection(kinds):
        sentences.append("The end of an epoch was not measured in each arm: longer trials would include it.")
    others = tuple(kind for kind in kinds if kind not in _EPOCH and kind != "unknown")
    if others:
        sentences.append(f"Not measured in each arm: {work_name(others)}.")
    if "unknown" in kinds:
        subject = "Other long steps of unknown cause" if are_others else "Long steps of unknown cause"
        sentences.append(f"{subject} are not part of a step, because how often they come is unknown.")
    return sentences
