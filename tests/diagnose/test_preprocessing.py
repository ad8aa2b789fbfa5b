"""What is advised for the time between two calls of a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.diagnose.rules.preprocessing import _changes
from flatout.records.diagnosis import Part

ONCE = "make and load the model once, if the script does it for each call"


def advised(operators: dict[str, float], of_operators_s: float) -> tuple[str, ...]:
    between_parts_s = [0.0] * len(Part)
    between_parts_s[Part.COMPUTE] = of_operators_s
    between_parts_s[Part.HOST_LAUNCH] = 1.0
    facts: Any = SimpleNamespace(between_operators_s=operators, between_parts_s=between_parts_s)
    context: Any = SimpleNamespace(has_gpu=False)
    return _changes(context, facts)


@pytest.mark.parametrize(
    ("operators", "of_operators_s", "is_advised"),
    [
        ({"aten::uniform_": 0.6, "aten::copy_": 0.2}, 2.0, True),
        ({"aten::copy_": 0.6, "aten::uniform_": 0.2}, 2.0, False),
        ({"aten::uniform_": 0.6}, 0.5, False),
        ({}, 2.0, False),
    ],
)
def test_a_model_that_is_made_for_each_call_is_to_be_made_once(
    operators: dict[str, float], of_operators_s: float, is_advised: bool
) -> None:
    """MORAN_v2#49: of 0.33 s for a picture, 0.31 s went into loading the model."""
    assert (ONCE in advised(operators, of_operators_s)) is is_advised
