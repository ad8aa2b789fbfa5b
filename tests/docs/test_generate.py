"""What the docs take from the code is all there, and what they repeat by hand agrees with it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flatout
from flatout.catalog import all_gpu_facts
from flatout.cli import VERBS, parser
from flatout.diagnose.explain import HEADINGS
from flatout.diagnose.rules import RULES
from flatout.doctor.checks import CHECKS
from flatout.records.diagnosis import PART_NAMES
from flatout.records.doctor import FAMILIES as CHECK_FAMILIES
from flatout.records.doctor import CheckResult, DoctorReport, HostDifference, HostsReport, Topology
from flatout.report.tuning_json import AdoptedChange, TriedChange, TuningReport

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    """The docs' generator, as MkDocs loads it: with its folder first among those that Python imports from."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        spec.loader.exec_module(module)
        yield module


@cache
def page(name: str, generate: Any) -> str:
    return generate.on_page_markdown((DOCS / name).read_text())


def test_every_mark_in_the_pages_is_replaced(generate: ModuleType) -> None:
    for path in DOCS.rglob("*.md"):
        text = page(str(path.relative_to(DOCS)), generate)
        assert "<!-- generated" not in text
        assert "[](" not in text, "a link without a text"


def test_a_mark_that_nothing_generates_stops_the_build(generate: ModuleType) -> None:
    with pytest.raises(KeyError):
        generate.on_page_markdown("<!-- generated: nothing -->")


def commands(group: Any, before: str = "") -> list[str]:
    """The names of all commands, as `schedule replay`."""
    names = []
    for name, command in group.commands.items():
        is_group = hasattr(command, "commands")
        names += [before + name] * (not is_group or command.invoke_without_command)
        names += commands(command, f"{before}{name} ") if is_group else []
    return names


COMMANDS = commands(parser())


def test_every_verb_has_a_command() -> None:
    assert {name.split()[0] for name in COMMANDS} == set(VERBS)
    assert {"schedule replay", "cost jobs", "cost power-cap", "cost spot"} <= set(COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_is_in_the_reference(verb: str, generate: ModuleType) -> None:
    section = page("reference/cli.md", generate).split(f"## flatout {verb}\n")[1].split("\n## ")[0]
    assert f"flatout {verb} " in section
    assert "`-h, --help`" in section


def test_every_check_is_in_the_reference_with_what_it_says_of_itself(generate: ModuleType) -> None:
    sections = page("reference/checks.md", generate).split("\n### ")[1:]
    assert [section.split("\n")[0] for section in sections] == [
        check.id for family in CHECK_FAMILIES for check in CHECKS if check.family == family
    ]
    for section in sections:
        for row in ("read", "expected", "source", "costs", "fix", "when this is wrong"):
            assert f"\n| {row} | " in section


@pytest.mark.parametrize("record", [DoctorReport, CheckResult, Topology, HostsReport, HostDifference])
def test_the_contract_of_doctor_has_every_key(record: Any, generate: ModuleType) -> None:
    text = page("reference/json.md", generate)
    for name in record.__struct_fields__:
        assert f"| `{name}` |" in text


def test_the_number_of_checks_that_the_readme_names_is_right() -> None:
    for name in ("README.md", "CHANGELOG.md"):
        assert f"{len(CHECKS)} checks" in (ROOT / name).read_text()


def test_every_finding_is_in_the_reference_with_its_five_headings(generate: ModuleType) -> None:
    sections = page("reference/findings.md", generate).split("\n## ")[1:]
    assert sorted(section.split("\n")[0] for section in sections) == sorted(rule.NAME for rule in RULES)
    for section in sections:
        assert re.findall(r"^\*\*(.+)\*\*$", section, re.MULTILINE) == list(HEADINGS)
        assert re.search(r"^`F\d+` \w.+\.$", section, re.MULTILINE)


def test_every_key_of_the_contract_is_in_the_reference(generate: ModuleType) -> None:
    text = page("reference/json.md", generate)
    for key in ("schema", "tool_version", "parts_s", "cost_s_per_step", "missing_ranks", "waiting_rank", "effect"):
        assert f"| `{key}` |" in text
    assert "| `num_steps` | integer |" in text
    assert "| `world_size` | integer or null |" in text
    assert "| `missing_ranks` | array of integers |" in text
    assert "| `ranks` | array of [RankDiagnosis](#rankdiagnosis) |" in text


def test_every_record_that_a_contract_names_is_in_the_reference(generate: ModuleType) -> None:
    text = page("reference/json.md", generate)
    named = set(re.findall(r"\[(\w+)\]\(#\w+\)", text))
    assert len(named) > 20
    assert named - set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == set()


def test_every_contract_that_a_verb_prints_is_in_the_reference() -> None:
    """By the names of schemas in the source; those that are only ever read back from files are not printed."""
    text = (DOCS / "reference" / "json.md").read_text()
    printed = set()
    for file in [*(ROOT / "src/flatout/cli").glob("*.py"), *(ROOT / "src/flatout/report").glob("*.py")]:
        printed |= set(re.findall(r'"(flatout/[a-z-]+)"', file.read_text()))
    assert "flatout/explanation" in printed
    assert [name for name in sorted(printed) if f"## {name}\n" not in text] == []


def test_every_key_of_a_tuning_is_in_the_reference(generate: ModuleType) -> None:
    text = page("reference/json.md", generate).split("## flatout/tuning")[1]
    for record in (TuningReport, AdoptedChange, TriedChange):
        for key in record.__struct_fields__:
            assert f"| `{key}` |" in text
    assert "| `interval` | array of 2 numbers or null |" in text
    assert "| `safety` | `exact` or `rounding` or `semantic` |" in text
    assert "| `launch` | object of arrays of strings |" in text


def test_comments_behind_and_above_a_field_are_its_meaning(generate: ModuleType) -> None:
    from flatout.records.machine import GpuFacts
    from generators.contracts.records_as_tables import field_comments

    comments = field_comments(GpuFacts)
    assert comments["memory_bytes"].startswith("as sold")
    assert comments["peak_flops_per_s"].startswith("For dense matrix multiplication")
    assert "name" not in comments


def test_every_part_is_explained(generate: ModuleType) -> None:
    text = page("concepts/parts.md", generate)
    assert [name for name in PART_NAMES if f"| `{name}` |" not in text] == []


def test_every_gpu_is_in_the_reference_with_its_source(generate: ModuleType) -> None:
    text = page("reference/gpus.md", generate)
    for gpu in all_gpu_facts():
        assert text.count(f"| {gpu.name} |") == 2
        assert gpu.source.rpartition(", ")[2] in text


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (DOCS / "reference/dependencies.md").read_text()
    core, extras = text.split("## Extras")
    assert set(re.findall(r"^\| `([\w-]+)` \|", core, re.MULTILINE)) == {name(each) for each in project["dependencies"]}
    assert set(re.findall(r"^\| `(\w+)` \| `([\w-]+)` \|", extras, re.MULTILINE)) == {
        (extra, name(each)) for extra, packages in project["optional-dependencies"].items() for each in packages
    }


def name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0]


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = re.findall(r"^`([^`]+)`$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(set(words))


def test_the_changelog_says_how_many_gpus_there_are_and_has_this_version_or_none_yet() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"A catalogue of {len(all_gpu_facts())} GPUs" in text
    assert "## [Unreleased]" in text or f"## [{flatout.__version__}]" in text


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
