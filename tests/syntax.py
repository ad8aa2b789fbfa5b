"""The syntax trees of Python files, for the tests of house rules, which look at each node of every file of Flatout."""

from __future__ import annotations

import ast
from functools import cache


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return what `ast.walk` yields for `source`: parents before children.

    Parsing all files takes seconds, so each process does it once. `tests/conftest.py` runs the tests that need them in
    one process, and forgets the trees after them.
    """
    return tuple(ast.walk(ast.parse(source)))
