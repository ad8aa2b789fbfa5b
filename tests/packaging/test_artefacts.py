"""What is installed: the bound on Python against the wheels of the index, files of both artefacts, and man pages."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import flatout
from flatout.cli import parser

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEELS = json.loads((ROOT / "benchmarks/results/core_wheels.json").read_text())


def loaded(name: str) -> Any:
    """A script of `packaging/`, as a module."""
    spec = importlib.util.spec_from_file_location(f"packaging_{name}", ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(loaded("man_pages").pages())


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


def test_the_conda_recipe_needs_what_the_project_needs() -> None:
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    requirements = [
        line.replace(" ", "").replace("prometheus_client", "prometheus-client")
        for line in recipe["requirements"]["run"]
    ]
    assert requirements[0] == f"python{PROJECT['project']['requires-python']}"
    assert requirements[1:] == PROJECT["project"]["dependencies"]
    assert recipe["context"]["version"] == flatout.__version__


def test_the_demo_says_what_it_downloads_and_how_large_that_is() -> None:
    demo_torch = loaded("demo_torch")
    files = [("torch-2.13.0.whl", 532_000_000), ("nvidia_cudnn.whl", 664_000_000), ("sympy.whl", None)]
    said = demo_torch.download_sentence(files)
    assert "3 files, 1.2 GB, and 1 of unknown size; the largest is nvidia_cudnn.whl" in said
    assert "62 MB" in demo_torch.download_sentence([("torch.whl", 62_000_000)])
    assert "is unknown" in demo_torch.download_sentence([])
    assert (ROOT / "Makefile").read_text().count(demo_torch.PINNED) >= 1


def test_the_demo_uses_only_a_torch_that_is_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    demo_torch = loaded("demo_torch")
    for version, is_used in (
        ("2.3.1", False),
        ("2.4.0", True),
        ("2.10.0+cu128", True),
        ("1.13.1", False),
        ("3.0.0", True),
    ):
        torch = SimpleNamespace(version=version, locate_file=lambda name: "/packages")
        monkeypatch.setattr(demo_torch.importlib.metadata, "distribution", lambda name, torch=torch: torch)
        assert (demo_torch.own_torch() is not None) == is_used, version


def test_integrations_runs_every_part_and_names_those_that_failed(tmp_path: Path) -> None:
    part = tmp_path / "make"
    part.write_text('#!/bin/sh\necho "part $2"\ntest "$2" != clusters\n')
    part.chmod(0o755)
    done = subprocess.run(["make", "integrations", f"MAKE={part}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert [line for line in done.stdout.splitlines() if line.startswith("part")] == ["part clusters", "part stack"]
    assert "error: failed: clusters\n" in done.stderr
