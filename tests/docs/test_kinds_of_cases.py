"""Each kind of input that was once answered wrongly is held by tests: the reported case, and at least three others."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
KINDS: list[dict[str, Any]] = tomllib.loads((TESTS / "data" / "cases" / "kinds.toml").read_text("utf-8"))["kind"]
TABLE = (TESTS.parent / "benchmarks" / "README.md").read_text("utf-8")


def is_defined(test: str) -> bool:
    file, _, name = test.partition("::")
    text = (TESTS / file).read_text("utf-8")
    return re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE) is not None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["name"])
def test_each_kind_has_three_others_and_each_is_held_by_a_test(kind: dict[str, Any]) -> None:
    others = [other["test"] for other in kind["others"]]
    assert len(set(others)) >= 3 and len(set(others)) == len(others)
    assert [test for test in (kind["test"], *others) if not is_defined(test)] == []


def test_the_table_has_the_same_kinds() -> None:
    for kind in KINDS:
        cells = [kind["name"], kind["case"], "; ".join(other["what"] for other in kind["others"])]
        assert f"| {' | '.join(cells)} |" in TABLE
