"""Results in the formats of CI systems, read back as these systems do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from tests.track.series import noisy, result

from flatout.records.tracking import Reported
from flatout.report.ci_formats import FORMATS
from flatout.report.ci_formats.reported import reported_check, reported_result
from flatout.report.ci_formats.step_summary import add_step_summary
from flatout.track.check import CheckRequest, check_history
from flatout.track.history_file import ResultHistory
from flatout.track.result_file import read_result

RESULTS = Path(__file__).parents[1] / "data" / "readers" / "results"
# https://bencher.dev/bmf.json
BMF = {
    "$schema": "http://json-schema.org/draft-07/schema",
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number"},
                        "lower_value": {"type": "number"},
                        "upper_value": {"type": "number"},
                    },
                    "required": ["value"],
                }
            },
        }
    },
}
# A name of a job that would be markup, a link, a mention, a second command or a control character.
NASTY = 'train </name> | [a](http://b) @you\n::error::x %0A ::warning::y <script> "&\x1b[31m'


def reported(*, gate: float | None = 0.03, job: str = "train") -> Reported:
    values = noisy([0.1] * 25 + [0.11] * 15, noise=0.005)
    results = [
        *(result(number, float(value), job=job) for number, value in enumerate(values)),
        *(result(number, 2.0, job=job, name="samples_per_s", unit="1/s", direction="higher") for number in range(20)),
        result(0, 7.0, job=job, name="speedup", direction="neutral"),
    ]
    check = check_history(Path("h"), ResultHistory(results=tuple(results)), CheckRequest(gate=gate))
    return reported_check(check)


def of_comparison() -> Reported:
    facts = read_result(RESULTS / "comparison.json").facts
    return reported_result("train", "m", facts.measures, verdict=facts.verdict, gate="failed")


def test_junit_has_a_case_for_each_measure_and_a_failure_for_the_gate() -> None:
    root = ElementTree.fromstring(FORMATS["junit"](reported()))
    assert root.tag == "testsuites"
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite}
    failure = cases["step_s"].find("failure")
    assert failure is not None
    assert (failure.text or "").startswith("worse, +")
    assert cases["samples_per_s"].find("failure") is None
    assert cases["speedup"].find("skipped") is not None
    assert all(case.get("classname") == suite.get("name") for case in suite)


def test_github_has_one_command_a_line_with_escaped_values() -> None:
    lines = FORMATS["github"](reported()).splitlines()
    assert lines[0].startswith("::error title=step_s%3A failed::worse, +")
    assert " %25 (" in lines[0]
    assert lines[1].startswith("::warning title=speedup%3A undecided::")
    assert len(lines) == 3


def test_bencher_has_its_published_schema() -> None:
    for each in (reported(), of_comparison()):
        jsonschema.validate(json.loads(FORMATS["bmf"](each)), BMF)
    measures = json.loads(FORMATS["bmf"](of_comparison()))["train [m]"]
    assert measures["cost_relative_to_a"] == pytest.approx(
        {"value": 1.25, "lower_value": 1 / 0.85, "upper_value": 1 / 0.75}
    )
    assert measures["step_s"] == {"value": 0.0625}


def test_benchmark_action_has_entries_of_which_smaller_is_better() -> None:
    entries: list[dict[str, Any]] = json.loads(FORMATS["benchmark-action"](reported()))
    assert all(isinstance(one["value"], float) and one["unit"] and one["name"] for one in entries)
    by_name = {one["name"].rpartition(": ")[2]: one for one in entries}
    assert by_name.keys() == {"step_s", "1 / samples_per_s"}  # `speedup` has no direction
    assert (by_name["1 / samples_per_s"]["value"], by_name["1 / samples_per_s"]["unit"]) == (0.5, "s")
    compared = json.loads(FORMATS["benchmark-action"](of_comparison()))
    assert [one["range"] for one in compared if "range" in one] == [f"{(1 / 0.75 - 1 / 0.85) / 2:.3g}"]


def test_markdown_has_a_row_for_each_measure() -> None:
    text = FORMATS["markdown"](reported())
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == ["| Measure", "| step\\_s", "| samples\\_per\\_s", "| speedup"]
    assert "| failed |" in rows[1]


def test_the_gate_of_a_comparison_is_of_its_relative_cost() -> None:
    outcomes = {measure.name: measure.outcome for measure in of_comparison().measures}
    assert outcomes == {"step_s": "passed", "peak_memory_bytes": "passed", "cost_relative_to_a": "failed"}


def test_a_gate_is_reported_also_before_there_is_a_ratio() -> None:
    facts = read_result(RESULTS / "comparison.json").facts
    measures = [measure for measure in facts.measures if measure.name != "cost_relative_to_a"]
    early = reported_result("train", "m", measures, verdict="undecided", gate="undecided")
    assert [(each.name, each.outcome) for each in early.measures] == [
        ("step_s", "undecided"),
        ("peak_memory_bytes", "passed"),
    ]
    assert "::warning title=step_s%3A undecided::verdict: undecided" in FORMATS["github"](early)


def without_gate(verdict: str) -> Reported:
    facts = read_result(RESULTS / "comparison.json").facts
    return reported_result("train", "m", facts.measures, verdict=verdict, gate=None)


@pytest.mark.parametrize(("verdict", "outcome"), [("undecided", "undecided"), ("worse", None), ("equivalent", None)])
def test_without_a_gate_nothing_has_passed_one(verdict: str, outcome: str | None) -> None:
    result = without_gate(verdict)
    assert [measure.outcome for measure in result.measures] == [None, None, outcome]
    rows = [line for line in FORMATS["markdown"](result).splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[3] for row in rows[1:]] == ["no gate", "no gate", outcome or "no gate"]
    assert "passed" not in "".join(rows)
    command = FORMATS["github"](result).splitlines()[0]
    starts = {
        "undecided": "::warning title=cost_relative_to_a%3A undecided::",
        None: "::notice title=cost_relative_to_a::",
    }
    assert command.startswith(starts[outcome] + f"verdict: {verdict}")
    (suite,) = ElementTree.fromstring(FORMATS["junit"](result))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "0")
    assert suite.get("skipped") == ("1" if outcome == "undecided" else "0")


def test_a_check_without_a_gate_passes_none() -> None:
    assert {measure.outcome for measure in reported(gate=None).measures} == {None}


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_from_a_file_stays_a_name(name: str) -> None:
    text = FORMATS[name](reported(job=NASTY))
    assert "\x1b" not in text
    if name == "junit":
        (suite,) = ElementTree.fromstring(text)
        assert (suite.get("name") or "").startswith("train </name> | [a](http://b) @you ::error::x")
    elif name == "github":
        assert [line.partition(" ")[0] for line in text.splitlines()[:2]] == ["::error", "::warning"]
        assert len(text.splitlines()) == 3
        assert "%0A" not in text.replace("%250A", "")
    elif name == "markdown":
        assert "\\[a\\](http://b) \\@you" in text
        assert "\\<script\\>" in text
    else:
        json.loads(text)


def test_the_summary_of_a_run_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    add_step_summary(reported(), {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text().startswith("before\n### Flatout")
    add_step_summary(reported(), {})
    assert list(tmp_path.iterdir()) == [path]
