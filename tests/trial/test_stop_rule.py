"""A rule that cannot be followed is refused where it is made."""

from __future__ import annotations

import msgspec
import pytest

from flatout.errors import UsageError
from flatout.records.stop_rule import StopRule, fixed_steps


@pytest.mark.parametrize(
    "values",
    [
        {"min_steps": 0},
        {"min_steps": 11},
        {"min_s": -1.0},
        {"relative_error": -0.1},
        {"min_s": 3.0, "max_s": 2.9},
    ],
)
def test_an_impossible_rule_is_refused(values: dict[str, float]) -> None:
    possible = {"min_steps": 1, "max_steps": 10}
    StopRule(**possible)
    with pytest.raises(UsageError):
        StopRule(**(possible | values))  # type: ignore[arg-type]


def test_only_a_fixed_number_of_steps_is_fixed() -> None:
    assert fixed_steps(30).is_fixed
    assert not StopRule(min_steps=29, max_steps=30).is_fixed
    assert msgspec.json.decode(msgspec.json.encode(fixed_steps(30)), type=StopRule) == fixed_steps(30)
