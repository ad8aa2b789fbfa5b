"""The first occurrence of some work stands for the later ones where a run shows that it takes as long."""

from __future__ import annotations

import pytest

from flatout.records.trial import SpellKind, StepSpell
from flatout.verdict.typical_firsts import is_first_typical, typical_kinds


def spells(kind: SpellKind, *seconds: float) -> list[StepSpell]:
    return [StepSpell(step=15 * (1 + place), kind=kind, seconds=value) for place, value in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "is_typical"),
    [
        ((8.47, 7.75, 8.10), True),  # a loader that starts anew at each epoch, on two H200
        ((8.0, 6.1), True),
        ((8.0, 5.9), False),  # the first costs more than four thirds
        ((6.0, 7.9), True),
        ((6.0, 8.1), False),
        ((8.0, 1.0, 1.0), False),
        ((8.0,), False),  # there is no later one
        ((0.0, 0.0), False),
    ],
)
def test_a_kind_is_typical_if_its_first_spell_takes_as_long_as_the_later_ones(
    seconds: tuple[float, ...], is_typical: bool
) -> None:
    assert typical_kinds(spells("evaluation", *seconds)) == (("evaluation",) if is_typical else ())


def test_kinds_are_told_apart() -> None:
    made = [*spells("evaluation", 5.4, 5.6), *spells("loader_start", 9.0, 1.0), *spells("epoch_end", 0.0, 0.0)]
    assert typical_kinds(made) == ("evaluation",)


def test_runs_that_show_both_count_more_than_what_is_known_of_another_run() -> None:
    kinds: tuple[SpellKind, ...] = ("evaluation", "loader_start")
    assert is_first_typical([{15: 9.0}, {15: 9.0, 30: 9.5}], kinds, ())
    assert not is_first_typical([{15: 9.0, 30: 1.0}, {15: 9.0, 30: 9.5}], kinds, kinds)
    assert is_first_typical([{15: 9.0}], kinds, kinds)
    assert not is_first_typical([{15: 9.0}], kinds, ("evaluation",))
    assert not is_first_typical([{15: 0.0}], (), kinds)  # no hook measured it
