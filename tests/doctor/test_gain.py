"""What fixing a defect of a path or link would gain a job: bounds worked out by hand, and why there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.doctor.samples import nccl_log, rdma_port, smi

from flatout.doctor.checks import CHECKS
from flatout.doctor.judge import judge_machine
from flatout.doctor_pipeline import job_times
from flatout.records.doctor import Gain, JobTraffic
from flatout.records.snapshot import Snapshot
from flatout.report.doctor_gain import gain_sentence
from flatout.report.doctor_html import doctor_html
from flatout.report.doctor_text import doctor_text
from flatout.report.terminal import TextStyle

TRACES = Path(__file__).parents[2] / "examples" / "traces"
JOB = JobTraffic(hosts=("node-a", "node-b"), num_hosts=2, has_gpu=True, step_s=0.1, copies_s=0.004, transfer_s=0.02)


def gain(check_id: str, snapshot: Snapshot, job: JobTraffic = JOB) -> Gain | None:
    return next(check for check in judge_machine(snapshot, job).checks if check.id == check_id).gain


def ports(*states: str) -> Snapshot:
    files: dict[str, str] = {}
    for number, state in enumerate(states):
        files |= rdma_port(f"mlx5_{number}", state=state)
    return Snapshot(files=files, host="node-a")


NARROW = smi({"PCI/GPU Link Info/Link Width/Current": "8x"})


def test_half_the_lanes_cost_half_of_the_exposed_copies_and_communication() -> None:
    found = gain("gpu-pcie-width", NARROW)
    bound = {"at_most_s": pytest.approx(0.012), "step_share": pytest.approx(0.12)}
    assert found == Gain(traffic="pcie", basis="bandwidth", **bound)
    assert gain_sentence(found) == (
        "at most 12.0 ms per step (12.0 % of the step): the share of the exposed copies and communication that the "
        "missing bandwidth takes"
    )


def test_one_port_of_four_costs_a_quarter_of_the_exposed_communication() -> None:
    found = gain("rdma-port-state", ports("4: ACTIVE", "4: ACTIVE", "4: ACTIVE", "1: DOWN"))
    assert found is not None
    assert (found.basis, found.at_most_s) == ("bandwidth", pytest.approx(0.005))


def test_where_the_bandwidth_after_the_fix_is_unknown_the_gain_is_too_and_has_a_bound() -> None:
    log = nccl_log("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
    found = gain("nccl-log-gpu-direct", log)
    assert found is not None
    assert (found.basis, found.at_most_s) == ("unknown-bandwidth", 0.02)
    assert gain_sentence(found).startswith("unknown, at most 20.0 ms per step (20.0 % of the step)")


@pytest.mark.parametrize(
    ("changes", "basis", "words"),
    [
        ({"num_hosts": 1, "hosts": ("node-a",)}, "one-host", "nothing: "),
        ({"hosts": ("node-c", "node-d")}, "other-host", "unknown: "),
        ({"step_s": None}, "no-steps", "unknown: "),
        ({"num_hosts": None, "hosts": ()}, "bandwidth", "at most "),
        ({"hosts": ("node-a.example.org", "node-b.example.org")}, "bandwidth", "at most "),
    ],
)
def test_a_job_that_the_defect_cannot_slow_or_of_which_nothing_is_known(
    changes: dict[str, object], basis: str, words: str
) -> None:
    found = gain("rdma-port-state", ports("4: ACTIVE", "1: DOWN"), msgspec.structs.replace(JOB, **changes))
    assert found is not None
    assert found.basis == basis
    assert gain_sentence(found).startswith(words)


def test_a_job_on_the_cpu_gains_nothing_known_from_a_link_of_a_gpu() -> None:
    found = gain("gpu-pcie-width", NARROW, msgspec.structs.replace(JOB, has_gpu=False))
    assert found is not None
    assert (found.basis, found.at_most_s) == ("no-gpu", None)


def test_only_defects_of_paths_and_links_have_a_gain() -> None:
    assert gain("gpu-pcie-width", smi()) is None  # no defect
    assert gain("gpu-row-remap", smi({"Remapped Rows/Pending": "Yes"})) is None
    assert all(check.gain is None for check in judge_machine(NARROW).checks)  # no job
    assert len([check for check in CHECKS if check.traffic]) > 30


def test_text_and_page_say_it() -> None:
    report = judge_machine(NARROW, JOB)
    assert "this job  a fix gains at most 12.0 ms per step" in doctor_text(report, style=TextStyle(width=200))
    assert "<h4>Gain for this job</h4><p>at most 12.0" in doctor_html(report, ["flatout"])


def test_the_times_of_a_recorded_job() -> None:
    job = job_times(TRACES / "straggler.tar.xz")
    assert job.step_s is not None and 0 < job.transfer_s < job.step_s


@pytest.mark.usefixtures("warm")
def test_the_option(tmp_path: Path) -> None:
    path = tmp_path / "smi.txt"
    path.write_text(NARROW.outputs["nvidia-smi -q"].text or "")
    command = [sys.executable, "-m", "flatout", "doctor", "--json", "--from", str(path), "--recording"]
    done = subprocess.run(
        [*command, str(TRACES / "straggler.tar.xz")], capture_output=True, text=True, check=True, timeout=120
    )
    found = next(check for check in json.loads(done.stdout)["checks"] if check["id"] == "gpu-pcie-width")
    assert found["gain"]["traffic"] == "pcie"
    refused = subprocess.run([*command, "missing"], capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")
