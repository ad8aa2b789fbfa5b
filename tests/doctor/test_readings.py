"""What a check asks for is what the probe reads: a check that asks for more is `unknown` on every real machine."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.doctor.samples import BY_ID, kernel_log, nccl_log, smi
from tests.doctor.test_other_checks import ENVIRONMENT, HOST, KERNEL, NCCL, env, host

from flatout.doctor.check import run_check
from flatout.doctor.machine import (
    BMC_SENSORS,
    FABRIC_MANAGER_LOG,
    KERNEL_LOG,
    NCCL_GRAPH,
    NCCL_LOG,
    NCCL_TOPOLOGY,
    Machine,
)
from flatout.probe import snapshot as probe
from flatout.records.snapshot import Snapshot

# The probe reads these by functions of their own, or the user gives them.
OTHER_OUTPUTS = {
    *(KERNEL_LOG, "python packages", NCCL_TOPOLOGY, NCCL_LOG, NCCL_GRAPH, FABRIC_MANAGER_LOG, BMC_SENSORS),
}


class AskedVariables(dict[str, str]):
    """Notes the name of every variable that a check asks for."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables)
        self.names: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


class AskedMachine(Machine):
    """Notes every path, output and variable that a check asks for."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.paths: set[str] = set()
        self.outputs: set[str] = set()
        self.variables = AskedVariables(snapshot.environment or {})

    def file(self, path: str) -> str:
        self.paths.add(path)
        return super().file(path)

    def optional(self, path: str) -> str | None:
        self.paths.add(path)
        return super().optional(path)

    def matching(self, pattern: str) -> dict[str, str]:
        self.paths.add(pattern.replace("*", "1"))  # one of the paths that the pattern stands for
        return super().matching(pattern)

    def output(self, name: str) -> str:
        self.outputs.add(name)
        return super().output(name)

    @property
    def environment(self) -> dict[str, str]:
        return self.variables


def samples() -> Iterator[tuple[str, Snapshot]]:
    """Yield the samples on which the tests try the checks, and for every check a host that shows little."""
    for check_id, files, _ in HOST:
        yield check_id, host(files)
    for check_id, variables, _ in ENVIRONMENT:
        yield check_id, env(**variables)
    for check_id, line, _ in KERNEL:
        yield check_id, kernel_log(line)
    for check_id, lines, _ in NCCL:
        yield check_id, nccl_log(*lines)
    for check_id in BY_ID:
        yield check_id, Snapshot()
        yield check_id, smi()


def is_read(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if folder.startswith("/sys/fs/cgroup"):
        return name in probe._CGROUP_FILES
    if fnmatch.fnmatchcase(folder, "/sys/bus/pci/devices/*"):
        return name in probe._PCI_FILES
    return path in probe._FILES or any(fnmatch.fnmatchcase(path, pattern) for pattern in probe._GLOBS)


def not_read(check_id: str, snapshot: Snapshot) -> set[str]:
    """Return what the check asks for and the probe does not read."""
    machine = AskedMachine(snapshot)
    run_check(BY_ID[check_id], machine)
    paths = {path for path in machine.paths if not is_read(path)}
    outputs = machine.outputs - probe._COMMANDS.keys() - OTHER_OUTPUTS
    variables = {name for name in machine.variables.names if not name.startswith(probe._PREFIXES)}
    return paths | outputs | variables


def test_the_probe_reads_every_file_output_and_variable_that_a_check_asks_for() -> None:
    missing: defaultdict[str, set[str]] = defaultdict(set)
    for check_id, snapshot in samples():
        for name in not_read(check_id, snapshot):
            missing[name].add(check_id)
    assert not missing, f"add these to the lists of `probe/snapshot.py`: {dict(missing)}"


@pytest.mark.parametrize(
    ("read", "check_id", "asked"),
    [
        ("_FILES", "cpu-numa-balancing", "/proc/sys/kernel/numa_balancing"),
        ("_GLOBS", "storage-read-ahead", "/sys/block/1/queue/read_ahead_kb"),
        ("_CGROUP_FILES", "cpu-throttled", "/sys/fs/cgroup1/cpu.stat"),
        ("_PCI_FILES", "kernel-pcie-errors", "/sys/bus/pci/devices/1/aer_dev_fatal"),
        ("_PREFIXES", "torch-allocator", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        ("_COMMANDS", "storage-free-space", "df -P -k"),
    ],
)
def test_what_the_probe_no_longer_read_would_be_missed(
    read: str, check_id: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, read, type(getattr(probe, read))())
    assert asked in set().union(*(not_read(each, snapshot) for each, snapshot in samples() if each == check_id))
