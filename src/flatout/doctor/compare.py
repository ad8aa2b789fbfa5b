"""Snapshots of several hosts -> HostsReport: each judged on its own, and what some have unlike the others.

A text fact is compared by majority, a number by the robust rule of `peers`, a check's status by majority. A fact that a
host does not give is left out for that host; with fewer than two hosts that give it, nothing is said, and why is told.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from flatout.doctor.check import named
from flatout.doctor.checks.software_nccl import settings
from flatout.doctor.judge import judged
from flatout.doctor.machine import Machine
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.doctor import ComparedFact, DoctorReport, HostDifference, HostsReport, Status
from flatout.records.snapshot import Snapshot
from flatout.units import num_bytes

Value = TypeVar("Value")


def _rates(machine: Machine) -> str:
    rates = machine.matching("/sys/class/infiniband/*/ports/*/rate")
    if not rates:
        raise NotHereError("no RDMA port")
    return ", ".join(sorted(text.split(" (")[0] for text in rates.values()))


def _package(name: str) -> Callable[[Machine], str]:
    def value(machine: Machine) -> str:
        return machine.packages.get(name) or "not installed"

    return value


def _gpu_text(path: str) -> Callable[[Machine], str]:
    def value(machine: Machine) -> str:
        found = {text for gpu in machine.gpus if (text := gpu.text(path))}
        if not found:
            raise NotReadError(f"`nvidia-smi -q` gives no {path}")
        return ", ".join(sorted(found))

    return value


def _gpu_median(*paths: str, busy_only: bool = False) -> Callable[[Machine], float]:
    def value(machine: Machine) -> float:
        numbers = [
            number
            for gpu in machine.gpus
            if (number := gpu.number(*paths)) is not None and (not busy_only or machine.is_loaded(gpu))
        ]
        if not numbers:
            raise NotReadError("no GPU was busy" if busy_only else f"`nvidia-smi -q` gives no {paths[0]}")
        return statistics.median(numbers)

    return value


def _nccl_settings(machine: Machine) -> str:
    found = settings(machine)
    return ", ".join(f"{name}={value}" for name, (value, _) in sorted(found.items())) or "none"


# Fact -> its text on a host, and what a difference is worth.
_TEXTS: Mapping[str, tuple[Callable[[Machine], str], Status]] = {
    "number of GPUs": (lambda machine: str(len(machine.gpus)), "fail"),
    "GPU model": (_gpu_text("Product Name"), "warn"),
    "GPU firmware (VBIOS)": (_gpu_text("VBIOS Version"), "info"),
    "driver": (lambda machine: machine.smi.driver or _missing("driver version"), "warn"),
    "kernel": (lambda machine: machine.file("/proc/sys/kernel/osrelease"), "info"),
    "torch": (_package("torch"), "warn"),
    "NCCL of CUDA 12": (_package("nvidia-nccl-cu12"), "warn"),
    "NCCL settings": (_nccl_settings, "warn"),
    "rates of RDMA ports": (_rates, "fail"),
    "nvidia_peermem": (lambda machine: "loaded" if "nvidia_peermem" in machine.modules() else "not loaded", "warn"),
    "CPU": (lambda machine: _cpu_model(machine), "info"),
    "allowed CPUs": (lambda machine: str(len(machine.cpus_allowed)), "warn"),
}
# Fact -> its number on a host, the share of the median that matters, and how it is written.
_NUMBERS: Mapping[str, tuple[Callable[[Machine], float], float, Callable[[float], str]]] = {
    "memory of the host": (lambda machine: float(machine.memory_bytes["MemTotal"]), 0.02, num_bytes),
    "power limit of the GPUs": (
        _gpu_median("Enforced Power Limit", "Current Power Limit"), 0.02, lambda value: f"{value:g} W",
    ),
    "clock of busy GPUs": (_gpu_median("Clocks/SM", busy_only=True), 0.05, lambda value: f"{value:g} MHz"),
    "temperature of busy GPUs": (_gpu_median("GPU Current Temp", busy_only=True), 0.25, lambda value: f"{value:g} C"),
}  # fmt: skip


def _missing(what: str) -> str:
    raise NotReadError(f"`nvidia-smi -q` gives no {what}")


def _cpu_model(machine: Machine) -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", machine.file("/proc/cpuinfo"), re.MULTILINE)
    if match is None:
        raise NotReadError("`/proc/cpuinfo` names no model")
    return match[1].strip()


def compared(snapshots: Sequence[Snapshot]) -> HostsReport:
    """Hosts are named by what they call themselves; a second one of that name gets its file's name too."""
    machines: dict[str, Machine] = {}
    reports: list[DoctorReport] = []
    for number, snapshot in enumerate(snapshots):
        name = snapshot.host or (os.path.basename(snapshot.read_from[0]) if snapshot.read_from else f"host {number}")
        while name in machines:
            name += f" ({os.path.basename(snapshot.read_from[0]) if snapshot.read_from else number})"
        machines[name] = Machine(snapshot)
        reports.append(msgspec.structs.replace(judged(snapshot), host=name))
    differences: list[HostDifference] = []
    facts: list[ComparedFact] = []
    not_compared: dict[str, str] = {}
    for fact, (text_of, status) in _TEXTS.items():
        texts, why = _given(machines, text_of)
        if len(texts) < 2:
            not_compared[fact] = f"{len(texts)} of {len(machines)} hosts give it{why}"
            continue
        difference = _by_majority(fact, status, texts)
        facts.append(_fact(fact, len(texts), next(iter(texts.values())), difference))
        differences += [] if difference is None else [difference]
    for fact, (number_of, share, written) in _NUMBERS.items():
        numbers, why = _given(machines, number_of)
        if len(numbers) < MIN_PEERS:
            not_compared[fact] = f"{len(numbers)} of {len(machines)} hosts give it, and {MIN_PEERS} are needed{why}"
            continue
        difference = _by_spread(fact, numbers, share, written)
        middle, low, high = (written(rule(numbers.values())) for rule in (statistics.median, min, max))
        usual = middle if low == high else f"{middle} ({low} to {high})"
        facts.append(_fact(fact, len(numbers), usual, None, {} if difference is None else difference.found))
        differences += [] if difference is None else [difference]
    differences += _of_statuses(dict(zip(machines, reports, strict=True)))
    order = ("fail", "warn", "unknown", "info", "ok")
    differences.sort(key=lambda difference: order.index(difference.status))
    return HostsReport(
        differences=tuple(differences), compared=tuple(facts), not_compared=not_compared, hosts=tuple(reports)
    )


def _given(machines: Mapping[str, Machine], value_of: Callable[[Machine], Value]) -> tuple[dict[str, Value], str]:
    """By host, and why the last one that lacks it does, behind a colon; nothing where all have it."""
    found: dict[str, Value] = {}
    why = ""
    for name, machine in machines.items():
        try:
            found[name] = value_of(machine)
        except (NotReadError, NotHereError) as error:
            why = f": {error}"
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            why = f": what was read cannot be understood: {error}"
    return found, why


def _by_majority(fact: str, status: Status, texts: Mapping[str, str]) -> HostDifference | None:
    if len(set(texts.values())) == 1:
        return None
    odd = minority(texts)
    if odd is None:
        return HostDifference(
            fact=fact,
            status=status,
            hosts=tuple(texts),
            usual="no value has a majority",
            found=dict(texts),
            reason="the hosts differ, and none is usual",
        )
    usual, hosts = odd
    return HostDifference(
        fact=fact,
        status=status,
        hosts=tuple(hosts),
        usual=usual,
        found={host: texts[host] for host in hosts},
        reason=f"unlike {len(texts) - len(hosts)} of {len(texts)} hosts: {named(hosts)}",
    )


def _fact(
    fact: str, num_hosts: int, usual: str, difference: HostDifference | None, unlike: Mapping[str, str] | None = None
) -> ComparedFact:
    """Of a text, `difference` has what is usual, where there is one."""
    if difference is not None:
        return ComparedFact(fact=fact, num_hosts=num_hosts, usual=difference.usual, unlike=difference.found)
    return ComparedFact(fact=fact, num_hosts=num_hosts, usual=usual, unlike=dict(unlike or {}))


def _by_spread(
    fact: str, numbers: Mapping[str, float], share: float, written: Callable[[float], str]
) -> HostDifference | None:
    odd = outliers(numbers, share=share)
    if not odd:
        return None
    return HostDifference(
        fact=fact,
        status="warn",
        hosts=tuple(odd),
        usual=written(statistics.median(numbers.values())),
        found={host: written(numbers[host]) for host in odd},
        reason=named(f"{host}: {by:+.0%}" for host, by in odd.items()) + " of the median of the hosts",
    )


def _of_statuses(reports: Mapping[str, DoctorReport]) -> list[HostDifference]:
    """Checks that fail or warn on a minority of the hosts."""
    found = []
    by_check: dict[str, dict[str, Status]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for host, report in reports.items():
        for check in report.checks:
            by_check.setdefault(check.id, {})[host] = check.status
            reasons[host, check.id] = check.reason
    for check_id, statuses in by_check.items():
        known: dict[str, Status] = {host: status for host, status in statuses.items() if status != "unknown"}
        bad = {host: status for host, status in known.items() if status in ("fail", "warn")}
        if bad and 2 * len(bad) < len(known):
            found.append(
                HostDifference(
                    fact=f"check {check_id}",
                    check=check_id,
                    status="fail" if "fail" in bad.values() else "warn",
                    hosts=tuple(bad),
                    usual="neither fails nor warns",
                    found={host: reasons[host, check_id] for host in bad},
                    reason=f"on {len(bad)} of {len(known)} hosts only: {named(bad)}",
                )
            )
    return found
