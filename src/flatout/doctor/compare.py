"""Compare snapshots of several hosts: judge each host separately, and report how some differ from the others.

Texts and the statuses of checks are compared by majority, numbers by the robust rule of `peers`. A host without a value
for a fact is skipped for that fact; if fewer than two hosts have one, the report says why the fact is not compared.
"""

from __future__ import annotations

import os
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from flatout.doctor.check import named
from flatout.doctor.checks.software_nccl import settings
from flatout.doctor.judge import judge_machine
from flatout.doctor.machine import Machine
from flatout.doctor.parse.nvidia_smi import SmiGpu
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.doctor import (
    STATUSES,
    CheckResult,
    ComparedFact,
    DoctorReport,
    HostDifference,
    HostsReport,
    Status,
)
from flatout.records.snapshot import Snapshot
from flatout.units import num_bytes

Value = TypeVar("Value")


class _TextFact(NamedTuple):
    read: Callable[[Machine], str]
    status: Status  # status of a difference


class _NumberFact(NamedTuple):
    read: Callable[[Machine], float]
    share: float  # share of the median; a smaller deviation does not matter
    write: Callable[[float], str]


def _gpu_text(path: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        texts = {text for gpu in machine.gpus if (text := gpu.text(path))}
        if not texts:
            raise NotReadError(f"`nvidia-smi -q` gives no {path}")
        return ", ".join(sorted(texts))

    return read


def _gpu_median(*paths: str) -> Callable[[Machine], float]:
    def read(machine: Machine) -> float:
        return _median(machine.gpus, paths, f"`nvidia-smi -q` gives no {paths[0]}")

    return read


def _busy_gpu_median(*paths: str) -> Callable[[Machine], float]:
    def read(machine: Machine) -> float:
        with_value = [gpu for gpu in machine.gpus if gpu.number(*paths) is not None]
        return _median(filter(machine.is_loaded, with_value), paths, "no GPU was busy")

    return read


def _median(gpus: Iterable[SmiGpu], paths: Sequence[str], problem: str) -> float:
    numbers = [number for gpu in gpus if (number := gpu.number(*paths)) is not None]
    if not numbers:
        raise NotReadError(problem)
    return statistics.median(numbers)


def _driver(machine: Machine) -> str:
    if not machine.smi.driver:
        raise NotReadError("`nvidia-smi -q` gives no driver version")
    return machine.smi.driver


def _package(name: str) -> Callable[[Machine], str]:
    return lambda machine: machine.packages.get(name) or "not installed"


def _nccl_settings(machine: Machine) -> str:
    values = [f"{name}={setting.value}" for name, setting in sorted(settings(machine).items())]
    return ", ".join(values) or "none"


def _rdma_rates(machine: Machine) -> str:
    rates = machine.matching("/sys/class/infiniband/*/ports/*/rate")
    if not rates:
        raise NotHereError("no RDMA port")
    return ", ".join(sorted(text.split(" (")[0] for text in rates.values()))


def _peermem(machine: Machine) -> str:
    return "loaded" if "nvidia_peermem" in machine.modules() else "not loaded"


def _cpu_model(machine: Machine) -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", machine.file("/proc/cpuinfo"), re.MULTILINE)
    if match is None:
        raise NotReadError("`/proc/cpuinfo` names no model")
    return match[1].strip()


_TEXT_FACTS: Mapping[str, _TextFact] = {
    "number of GPUs": _TextFact(lambda machine: str(len(machine.gpus)), "fail"),
    "GPU model": _TextFact(_gpu_text("Product Name"), "warn"),
    "GPU firmware (VBIOS)": _TextFact(_gpu_text("VBIOS Version"), "info"),
    "driver": _TextFact(_driver, "warn"),
    "kernel": _TextFact(lambda machine: machine.file("/proc/sys/kernel/osrelease"), "info"),
    "torch": _TextFact(_package("torch"), "warn"),
    "NCCL of CUDA 12": _TextFact(_package("nvidia-nccl-cu12"), "warn"),
    "NCCL settings": _TextFact(_nccl_settings, "warn"),
    "rates of RDMA ports": _TextFact(_rdma_rates, "fail"),
    "nvidia_peermem": _TextFact(_peermem, "warn"),
    "CPU": _TextFact(_cpu_model, "info"),
    "allowed CPUs": _TextFact(lambda machine: str(len(machine.cpus_allowed)), "warn"),
}
_NUMBER_FACTS: Mapping[str, _NumberFact] = {
    "memory of the host": _NumberFact(lambda machine: float(machine.memory_bytes["MemTotal"]), 0.02, num_bytes),
    "power limit of the GPUs": _NumberFact(
        _gpu_median("Enforced Power Limit", "Current Power Limit"), 0.02, lambda value: f"{value:g} W"
    ),
    "clock of busy GPUs": _NumberFact(_busy_gpu_median("Clocks/SM"), 0.05, lambda value: f"{value:g} MHz"),
    "temperature of busy GPUs": _NumberFact(_busy_gpu_median("GPU Current Temp"), 0.25, lambda value: f"{value:g} C"),
}


def compare_snapshots(snapshots: Sequence[Snapshot]) -> HostsReport:
    """Compare hosts by their host names. If two hosts have the same name, the second gets its file's name too."""
    machines = _by_name(snapshots)
    comparison = _Comparison(machines)
    for name, text_fact in _TEXT_FACTS.items():
        comparison.compare_text(name, text_fact)
    for name, number_fact in _NUMBER_FACTS.items():
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

    def compare_text(self, name: str, fact: _TextFact) -> None:
        texts, problem = self._values(fact.read)
        if len(texts) < 2:
            self.not_compared[name] = f"{len(texts)} of {len(self.machines)} hosts give a value{problem}"
            return
        difference = _by_majority(name, fact.status, texts)
        usual = difference.usual if difference else next(iter(texts.values()))
        self._add(name, len(texts), usual, difference)

    def compare_number(self, name: str, fact: _NumberFact) -> None:
        numbers, problem = self._values(fact.read)
        if len(numbers) < MIN_PEERS:
            self.not_compared[name] = (
                f"{len(numbers)} of {len(self.machines)} hosts give a value, and {MIN_PEERS} are needed{problem}"
            )
            return
        median, low, high = (fact.write(rule(numbers.values())) for rule in (statistics.median, min, max))
        usual = median if low == high else f"{median} ({low} to {high})"
        self._add(name, len(numbers), usual, _by_spread(name, fact, numbers))

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
                problem = f": what was read cannot be understood: {error}"
        return values, problem

    def _add(self, name: str, num_hosts: int, usual: str, difference: HostDifference | None) -> None:
        unlike = {} if difference is None else difference.found
        self.facts.append(ComparedFact(fact=name, num_hosts=num_hosts, usual=usual, unlike=unlike))
        if difference is not None:
            self.differences.append(difference)


def _by_majority(name: str, status: Status, texts: Mapping[str, str]) -> HostDifference | None:
    if len(set(texts.values())) == 1:
        return None
    odd = minority(texts)
    if odd is None:
        return HostDifference(
            fact=name,
            status=status,
            hosts=tuple(texts),
            usual="no value has a majority",
            found=dict(texts),
            reason="the hosts differ, and no value has a majority",
        )
    usual, hosts = odd
    return HostDifference(
        fact=name,
        status=status,
        hosts=tuple(hosts),
        usual=usual,
        found={host: texts[host] for host in hosts},
        reason=f"different from {len(texts) - len(hosts)} of {len(texts)} hosts: {named(hosts)}",
    )


def _by_spread(name: str, fact: _NumberFact, numbers: Mapping[str, float]) -> HostDifference | None:
    deviations = outliers(numbers, share=fact.share)
    if not deviations:
        return None
    shown = named(f"{host}: {deviation:+.0%}" for host, deviation in deviations.items())
    return HostDifference(
        fact=name,
        status="warn",
        hosts=tuple(deviations),
        usual=fact.write(statistics.median(numbers.values())),
        found={host: fact.write(numbers[host]) for host in deviations},
        reason=f"{shown} from the median of the hosts",
    )


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
