"""What is installed: the bound on Python against the wheels of the index, files of both artefacts, and man pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flatout.cli import parser

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEELS = json.loads((ROOT / "benchmarks/results/core_wheels.json").read_text())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    sys.path.insert(0, str(ROOT / "packaging"))
    try:
        import man_pages
    finally:
        sys.path.pop(0)
    return dict(man_pages.pages())


def minors() -> list[str]:
    """The versions of Python that the bound allows."""
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"]).groups()
    return [f"3.{minor}" for minor in range(int(low), int(high))]


def test_every_python_in_the_bound_has_wheels_of_the_whole_core() -> None:
    assert WHEELS["dependencies"] == PROJECT["project"]["dependencies"], "run packaging/check_wheels.py again"
    complete = {result["python"] for result in WHEELS["results"] if result["is_complete"] and not result["errors"]}
    assert set(minors()) <= complete


def test_the_makefile_and_the_classifiers_name_the_same_pythons() -> None:
    named = {f"3.{minor}" for minor in re.findall(r"Python :: 3\.(\d+)", "\n".join(PROJECT["project"]["classifiers"]))}
    assert named == set(minors())
    makefile = (ROOT / "Makefile").read_text()
    assert f"<= (3, {minors()[-1].partition('.')[2]})" in makefile
    assert f"Python {minors()[0]} to {minors()[-1]} with the venv module" in makefile


def test_the_source_distribution_takes_all_that_git_has() -> None:
    included = set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tops = {path.partition("/")[0] for path in tracked if path}
    assert tops - included - {".gitignore", "pyproject.toml"} == set()  # which the builder adds


def commands(name: str, command: object) -> list[tuple[str, object]]:
    children = getattr(command, "commands", {})
    return [(name, command), *(pair for child, its in children.items() for pair in commands(f"{name} {child}", its))]


def test_every_command_has_a_man_page_with_its_options(pages: dict[str, str]) -> None:
    named = commands("flatout", parser())
    assert set(pages) == {f"{name.replace(' ', '-')}.1" for name, _ in named}
    for name, command in named:
        text = pages[f"{name.replace(' ', '-')}.1"].replace("\\-", "-")
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert max(parameter.opts, key=len) in text, name


def test_a_man_page_has_no_line_that_troff_takes_for_a_request(pages: dict[str, str]) -> None:
    requests = {".TH", ".SH", ".PP", ".TP", ".B", ".nf", ".fi"}
    for name, text in pages.items():
        lines = [line for line in text.splitlines() if line.startswith((".", "'"))]
        assert {line.split(" ")[0] for line in lines} <= requests, name
