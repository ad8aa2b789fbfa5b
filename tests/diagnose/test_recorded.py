"""What a recording adds to findings: each rule says which of its hosts' numbers show a cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.report import builder
from tests.trial.recordings import rank, recording

from flatout.diagnose.recorded import with_recording
from flatout.diagnose.rules import RULES
from flatout.records.diagnosis import Finding
from flatout.records.recording import DeviceFacts, GpuUse, HostUse, Recording

GPU = GpuUse(index=1, uuid="GPU-b", throttle_share={"power": 0.25, "idle": 0.01})
FULL = HostUse(
    hostname="host",
    num_samples=10,
    cores_allowed=8.0,
    cores_busy=7.5,
    throttled_s_per_s=0.1,
    disk_read_bytes_per_s=2e9,
    disk_busy_share=0.95,
    network_sent_bytes_per_s=3e9,
    gpus=(GpuUse(index=0, uuid="GPU-a", throttle_share={"thermal": 0.5}), GPU),
)
IDLE = msgspec.structs.replace(FULL, cores_busy=1.0, throttled_s_per_s=None, disk_busy_share=0.1, gpus=())
CORES = {"cores_allowed": 8.0, "cores_busy": 7.5, "throttled_s_per_s": 0.1}
BUSY = "all 8 cores that the job can use are busy"
DISK = {"disk_read_bytes_per_s": 2e9, "disk_busy_share": 0.95}


def recorded(folder: Path, *hosts: HostUse) -> Recording:
    device = DeviceFacts(index=1, name="NVIDIA H200", memory_bytes=1, uuid="GPU-b")
    made = recording(folder, msgspec.structs.replace(rank(1), device=device))
    return msgspec.structs.replace(made, hosts=hosts)


def explained(folder: Path, name: str, *hosts: HostUse) -> Finding:
    one = builder.finding(
        name, 0.01, 0.2, title="a title", ranks=(1,), evidence={"own": 7}, changes=("what the rule advises",)
    )
    diagnosis = msgspec.structs.replace(builder.straggler(), findings=(one,))
    (found,) = with_recording(diagnosis, recorded(folder, *hosts)).findings
    return found


@pytest.mark.parametrize(
    ("name", "evidence", "causes"),
    [
        (
            "data-loading",
            CORES | DISK,
            ("all 8 cores that the job can use are busy", "the disk is at its limit, 2.00 GB/s"),
        ),
        ("host-bound", CORES, (BUSY,)),
        ("exposed-communication", {"network_sent_bytes_per_s": 3e9}, ()),
        ("straggler", {"throttled_share": {"power": 0.25}}, ("its clocks were throttled (power)",)),
    ],
)
def test_a_rule_names_what_of_its_hosts_shows_a_cause(
    tmp_path: Path, name: str, evidence: dict[str, Any], causes: tuple[str, ...]
) -> None:
    found = explained(tmp_path, name, FULL)
    assert found.evidence == {"own": 7} | evidence
    assert found.title == "; ".join(("a title", *causes))


SHARED = msgspec.structs.replace(FULL, cores_busy_by_others=6.5, disk_busy_share=0.1, gpus=())


@pytest.mark.parametrize("name", ["data-loading", "host-bound", "straggler", "late-in-turn"])
def test_other_processes_on_the_cores_are_the_cause_and_not_the_job(tmp_path: Path, name: str) -> None:
    finding = explained(tmp_path, name, SHARED)
    assert finding.title == "a title; other processes keep 6.5 of the 8 cores busy that the job can use"
    assert finding.evidence["cores_busy_by_others"] == 6.5
    assert finding.changes[0] == "keep other processes off the job's cores on host"


@pytest.mark.parametrize(("others", "is_told"), [(0.7, False), (0.9, True)])
def test_other_processes_are_a_cause_from_a_tenth_of_the_cores(tmp_path: Path, others: float, is_told: bool) -> None:
    host = msgspec.structs.replace(IDLE, cores_busy=1.0, cores_busy_by_others=others)
    assert ("other processes" in explained(tmp_path, "host-bound", host).title) == is_told
    diagnosis = with_recording(builder.straggler(), recorded(tmp_path / "again", host))
    assert any("other processes" in note.problem for note in diagnosis.data_quality) == is_told


@pytest.mark.parametrize(("others", "is_first"), [(1.9, False), (2.1, True)])
def test_few_other_processes_are_not_the_first_thing_to_end(tmp_path: Path, others: float, is_first: bool) -> None:
    """They can explain a quarter of the cores' time at most."""
    host = msgspec.structs.replace(IDLE, cores_busy=1.0, cores_busy_by_others=others)
    changes = explained(tmp_path, "host-bound", host).changes
    assert changes[0 if is_first else -1] == "keep other processes off the job's cores on host"
    assert len(changes) > 1


def test_cores_that_are_busy_without_other_processes_are_busy_with_the_job(tmp_path: Path) -> None:
    host = msgspec.structs.replace(FULL, cores_busy_by_others=0.1, disk_busy_share=0.1)
    assert explained(tmp_path, "host-bound", host).title == f"a title; {BUSY}"


@pytest.mark.parametrize("name", sorted(rule.NAME for rule in RULES))
def test_a_host_that_has_time_to_spare_is_no_cause(tmp_path: Path, name: str) -> None:
    assert explained(tmp_path, name, IDLE).title == "a title"


@pytest.mark.parametrize("name", sorted({rule.NAME for rule in RULES}))
def test_only_hosts_of_the_findings_ranks_explain_it(tmp_path: Path, name: str) -> None:
    elsewhere = msgspec.structs.replace(FULL, hostname="other")
    found = explained(tmp_path, name, elsewhere)
    assert (found.title, found.evidence) == ("a title", {"own": 7})
