"""JUnit XML, as Jenkins, GitLab and others show it: a suite for each job and machine, a case for each measure.

A measure that fails the gate is a failure; one that is undecided is skipped; any other passes, also without a gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from flatout.records.tracking import Reported, ReportedMeasure
from flatout.report.terminal import visible
from flatout.report.track_phrases import value_text


def junit(reported: Reported) -> str:
    suites: dict[tuple[str, str], list[ReportedMeasure]] = {}
    for measure in reported.measures:
        suites.setdefault((measure.job, measure.machine), []).append(measure)
    totals = _attributes(reported.title, reported.measures)
    del totals["skipped"]  # the schema of Jenkins has it for suites only
    root = ElementTree.Element("testsuites", totals)
    for (job, machine), measures in suites.items():
        name = f"{job} [{machine}]"
        suite = ElementTree.SubElement(root, "testsuite", _attributes(name, measures))
        for measure in measures:
            _add_case(suite, name, measure)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _attributes(name: str, measures: Sequence[ReportedMeasure]) -> dict[str, str]:
    outcomes = [measure.outcome for measure in measures]
    return {
        "name": visible(name),
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failed")),
        "errors": "0",
        "skipped": str(outcomes.count("undecided")),
        "time": "0",
    }


def _add_case(suite: ElementTree.Element, class_name: str, measure: ReportedMeasure) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=visible(class_name), name=visible(measure.name), time="0"
    )
    message = visible(measure.message)
    if measure.outcome == "failed":
        ElementTree.SubElement(case, "failure", message=message, type="worse").text = message
    elif measure.outcome == "undecided":
        ElementTree.SubElement(case, "skipped", message=message or "undecided")
    value = visible(value_text(measure.value, measure.unit))
    ElementTree.SubElement(case, "system-out").text = f"{value}. {message}" if message else value
