"""Each how-to begins with a command and what it printed, and its Python imports names that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOW_TO = sorted((ROOT / "docs/how-to").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_it_begins_with_a_command_and_its_output(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    body = [line for line in lines if line.strip() and not line.startswith("#")]
    assert body[0] == "```console"
    block = body[1 : body.index("```")]
    assert block[0].startswith("$ ")
    assert [line for line in block if not line.startswith("$ ")], "the output is missing"


def imported_names(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of Flatout and the names that the Python on the page imports from them."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flatout":
                yield from ((str(node.module), alias.name) for alias in node.names)


def defined_names(module: str) -> set[str]:
    """Return the names that a module of `src` defines, imports or lists in `__all__`, and its submodules."""
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = {child.stem for child in path.iterdir()} if path.is_dir() else set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = {target.id for target in targets if isinstance(target, ast.Name)}
            if "__all__" in assigned and node.value is not None:  # also names that are loaded when they are asked for
                names |= {item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
            names |= assigned
    return names


def test_python_in_the_pages_imports_what_exists() -> None:
    imported = {(module, name) for page in PAGES for module, name in imported_names(page)}
    assert len(imported) >= 10
    assert {(module, name) for module, name in imported if name not in defined_names(module)} == set()
