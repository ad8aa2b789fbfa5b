"""Compare snapshots of several hosts: judge each host separately, and report how some differ from the others.

Texts and the statuses of checks are compared by majority, numbers by the robust rule of `peers`. A host without a value
for a fact is skipped for that fact; if fewer than two hosts have one, the report says why the fact is not compared.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from flatout.doctor.check import named
from flatout.doctor.compared_facts import NUMBER_FACTS, TEXT_FACTS, NumberFact, TextFact, captured_settings
from flatout.doctor.judge import judge_machine
from flatout.doctor.machine import Machine
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.doctor import (
    STATUSES,
    CheckResult,
    ComparedFact,
    DoctorReport,
    HostDifference,
    HostsReport,
)
from flatout.records.snapshot import Snapshot

Value = TypeVar("Value")


def compare_snapshots(snapshots: Sequence[Snapshot]) -> HostsReport:
    """Compare hosts by their host names. If two hosts have the same name, the second gets its file's name too."""
    machines = _by_name(snapshots)
    comparison = _Comparison(machines)
    for name, text_fact in {**TEXT_FACTS, **captured_settings(machines.values())}.items():
        comparison.compare_text(name, text_fact)
    for name, number_fact in NUMBER_FACTS.items():
        comparison.compare_number(name, number_fact)
    reports = {
        host: msgspec.structs.replace(judge_machine(machine.snapshot), host=host) for host, machine in machines.items()
    }
    differences = [*comparison.differences, *_different_statuses(reports)]
    differences.sort(key=lambda difference: STATUSES.index(difference.status))
    return HostsReport(
        differences=tuple(differences),
        compared=tuple(comparison.facts),
        not_compared=comparison.not_compared,
        hosts=tuple(reports.values()),
    )


def _by_name(snapshots: Sequence[Snapshot]) -> dict[str, Machine]:
    machines: dict[str, Machine] = {}
    for number, snapshot in enumerate(snapshots):
        file_name = os.path.basename(snapshot.read_from[0]) if snapshot.read_from else None
        name = snapshot.host or file_name or f"host {number}"
        while name in machines:
            name += f" ({file_name or number})"
        machines[name] = Machine(snapshot)
    return machines


class _Comparison:
    """The facts compared so far, and the differences between the hosts."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self.machines = machines
        self.differences: list[HostDifference] = []
        self.facts: list[ComparedFact] = []
        self.not_compared: dict[str, str] = {}  # fact -> why it is not compared

    def compare_text(self, name: str, fact: TextFact) -> None:
        texts, problem = self._values(fact.read)
        if len(texts) < 2:
            self.not_compared[name] = f"{len(texts)} of {len(self.machines)} hosts report a value{problem}"
            return
        difference = _by_majority(name, fact, texts)
        usual = difference.usual if difference else next(iter(texts.values()))
        self._add(name, len(texts), usual, difference)

    def compare_number(self, name: str, fact: NumberFact) -> None:
        numbers, problem = self._values(fact.read)
        fewest = 2 if fact.is_range else MIN_PEERS
        if len(numbers) < fewest:
            self.not_compared[name] = (
                f"{len(numbers)} of {len(self.machines)} hosts report a value, and {fewest} are needed{problem}"
            )
            return
        median, low, high = (fact.write(rule(numbers.values())) for rule in (statistics.median, min, max))
        usual = median if low == high else f"{median} ({low} to {high})"
        self._add(name, len(numbers), usual, _by_spread(name, fact, numbers), is_range=fact.is_range and low != high)

    def _values(self, read: Callable[[Machine], Value]) -> tuple[dict[str, Value], str]:
        """Return the value of each host and, after a colon, why the last host without a value has none."""
        values: dict[str, Value] = {}
        problem = ""
        for host, machine in self.machines.items():
            try:
                values[host] = read(machine)
            except (NotReadError, NotHereError) as error:
                problem = f": {error}"
            except (ValueError, LookupError, TypeError, ArithmeticError) as error:
                problem = f": the input cannot be parsed: {error}"
        return values, problem

    def _add(
        self, name: str, num_hosts: int, usual: str, difference: HostDifference | None, *, is_range: bool = False
    ) -> None:
        unlike = {} if difference is None else difference.found
        fact = ComparedFact(fact=name, num_hosts=num_hosts, usual=usual, unlike=unlike, is_range=is_range)
        self.facts.append(fact)
        if difference is not None:
            self.differences.append(difference)


def _by_majority(name: str, fact: TextFact, texts: Mapping[str, str]) -> HostDifference | None:
    keys = {host: fact.key(text) for host, text in texts.items()}
    if len(set(keys.values())) == 1:
        return None
    odd = minority(keys)
    if odd is None:
        return HostDifference(
            fact=name,
            status=fact.status,
            hosts=tuple(texts),
            usual="no value is shared by most hosts",
            found=dict(texts),
            reason="the hosts differ, and no value is shared by most of them",
        )
    _, hosts = odd
    usual = next(text for host, text in texts.items() if host not in hosts)
    return HostDifference(
        fact=name,
        status=fact.status,
        hosts=tuple(hosts),
        usual=usual,
        found={host: texts[host] for host in hosts},
        reason=f"different from {len(texts) - len(hosts)} of {len(texts)} hosts: {named(hosts)}",
    )


def _by_spread(name: str, fact: NumberFact, numbers: Mapping[str, float]) -> HostDifference | None:
    median = statistics.median(numbers.values())
    raised = {host: number + fact.floor for host, number in numbers.items()}
    deviations = outliers(raised, share=fact.share)
    if not deviations:
        return None
    shown = named(f"{host}: {_deviation(numbers[host], median)}" for host in deviations)
    return HostDifference(
        fact=name,
        status="warn",
        hosts=tuple(deviations),
        usual=fact.write(median),
        found={host: fact.write(numbers[host]) for host in deviations},
        reason=f"{shown} from the median of the hosts",
    )


def _deviation(number: float, median: float) -> str:
    """Return `-12 %`; for several times the median, the ratio."""
    ratio = number / median if median else None
    if ratio is None or ratio > 10:
        return "many times"
    return f"{ratio - 1:+.0%}"


def _different_statuses(reports: Mapping[str, DoctorReport]) -> list[HostDifference]:
    """Return the checks that fail or warn on a minority of the hosts that could judge them."""
    by_check: defaultdict[str, dict[str, CheckResult]] = defaultdict(dict)
    for host, report in reports.items():
        for result in report.checks:
            results = by_check[result.id]
            if result.status != "unknown":
                results[host] = result
    differences = []
    for check_id, results in by_check.items():
        bad = {host: result for host, result in results.items() if result.status in ("fail", "warn")}
        if not bad or 2 * len(bad) >= len(results):
            continue
        has_failure = any(result.status == "fail" for result in bad.values())
        differences.append(
            HostDifference(
                fact=f"check {check_id}",
                check=check_id,
                status="fail" if has_failure else "warn",
                hosts=tuple(bad),
                usual="neither fails nor warns",
                found={host: result.reason for host, result in bad.items()},
                reason=f"on {len(bad)} of {len(results)} hosts only: {named(bad)}",
            )
        )
    return differences
