"""The command line parses, calls and reports: what is longer belongs to a room that composes stages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flatout.cli

MOST_STATEMENTS = 30
FILES = sorted(Path(flatout.cli.__file__).parent.rglob("*.py"))


def num_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """In its body, with those of nested functions; the declarations of its parameters are none."""
    return sum(isinstance(node, ast.stmt) for statement in function.body for node in ast.walk(statement))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_function_of_the_command_line_has_at_most_30_statements(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    counts = {function.name: num_statements(function) for function in functions}
    assert {name: count for name, count in counts.items() if count > MOST_STATEMENTS} == {}


def test_statements_are_counted_in_all_blocks() -> None:
    source = "def f(a=1):\n    if a:\n        b = 1\n    else:\n        for c in a:\n            d = 2\n    return b"
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert num_statements(function) == 5
