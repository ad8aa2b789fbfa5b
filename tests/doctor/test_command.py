"""`flatout doctor` as a user calls it: this machine, bundles, files of tools, several hosts, and what must not leak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.doctor.samples import HEALTHY_MATRIX, kernel_log, nccl_log, smi

from flatout.doctor.inputs import bundle_bytes, kind_of, read_inputs
from flatout.doctor.secrets import without_secrets
from flatout.errors import InputError
from flatout.records.snapshot import Output, Snapshot

pytestmark = pytest.mark.usefixtures("warm")


def doctor(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | (environment or {}),
    )


def statuses(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.stderr == ""
    return {check["id"]: check["status"] for check in json.loads(done.stdout)["checks"]}


def test_this_machine_is_judged_captured_and_judged_again_alike(tmp_path: Path) -> None:
    bundle = tmp_path / "machine.json"
    here = doctor("--json", "--capture", bundle)
    assert here.returncode == 0
    content = json.loads(here.stdout)
    assert (content["schema"], content["version"]) == ("flatout/doctor", 2)
    for check in content["checks"]:
        assert check["status"] in ("ok", "info", "warn", "fail", "unknown")
        assert check["reason"]
        assert check["read"]
    again = doctor("--json", "--from", bundle)
    assert statuses(again) == statuses(here)
    assert "Traceback" not in here.stderr


def test_a_bundle_is_not_overwritten_unasked(tmp_path: Path) -> None:
    bundle = tmp_path / "machine.json"
    bundle.write_text("mine")
    done = doctor("--capture", bundle)
    assert (done.returncode, bundle.read_text()) == (2, "mine")
    assert done.stderr.startswith("error: ")


def test_text_shows_faults_in_full_and_the_topology(tmp_path: Path) -> None:
    matrix, query = tmp_path / "topo.txt", tmp_path / "smi.txt"
    matrix.write_text(HEALTHY_MATRIX)
    query.write_text(smi({"Remapped Rows/Pending": "Yes"}).outputs["nvidia-smi -q"].text or "")
    done = doctor("--from", query, "--topology", matrix)
    assert done.returncode == 0
    assert "fail    gpu-row-remap" in done.stdout
    assert "fix       pending: reset the GPU" in done.stdout
    assert "NV18" in done.stdout
    assert doctor("--from", query, "--fail-on", "fail").returncode == 1


def test_an_nccl_log_is_added(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(nccl_log("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'").outputs["NCCL log"].text or "")
    assert statuses(doctor("--json", "--nccl-log", log))["nccl-log-gpu-direct"] == "fail"
    assert statuses(doctor("--json", "--from", log))["nccl-log-gpu-direct"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "missing.json"], "cannot be read"),
        (["--nccl-log", "missing.log"], "cannot be read"),
        (["--fail-on", "bad"], "must be `fail` or `warn`"),
        (["--hosts", "missing.json"], "at least 2 hosts"),
        (["some.json"], "require `--hosts`"),
        (["--data", "missing"], "must be a folder"),
        (["--capture", "-", "--html", "page.html"], "cannot be combined with other outputs"),
        (["--hosts", "a,b", "--via", "ssh", "--flatout", "'x"], "is not a valid command"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(arguments: list[str], said: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text", ["", "hello\n", "{", "[1]", '{"a": 1}', '{"schema": "flatout/snapshot", "version": 9}', "<a/>"]
)
def test_what_is_no_source_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError):
        read_inputs([path])


def test_damaged_bytes_of_every_source_end_in_results_or_in_one_line(tmp_path: Path) -> None:
    from flatout.doctor.judge import judge_machine

    texts = [HEALTHY_MATRIX, nccl_log("Using network IB").outputs["NCCL log"].text, smi().outputs["nvidia-smi -q"].text]
    path = tmp_path / "file"
    for text in texts:
        assert text is not None
        data = text.encode()
        for cut in range(0, len(data), max(1, len(data) // 40)):
            path.write_bytes(data[:cut] + b"\xff\x00" + data[cut + 5 :])
            try:
                report = judge_machine(read_inputs([path]))
            except InputError:
                continue
            assert all("the input cannot be parsed" not in check.reason for check in report.checks)


def test_a_copy_of_sys_is_a_machine(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    (port / "phys_state").write_text("3: Disabled\n")
    assert statuses(doctor("--json", "--from", tmp_path))["rdma-port-state"] == "warn"
    # The folder of RDMA devices alone is known, too.
    assert statuses(doctor("--json", "--from", tmp_path / "sys/class/infiniband"))["rdma-port-state"] == "warn"


def test_kinds_are_told_from_the_content() -> None:
    assert kind_of(HEALTHY_MATRIX) == "nvidia-smi topo -m"
    assert kind_of(kernel_log().outputs["kernel log"].text or "") == "kernel log"
    for prefix in ("", "2025-01-21T04:41:44,285060+00:00 ", "Jan 21 04:41:44 node-a kernel: ", "<3>[  7.1] "):
        assert kind_of(f"{prefix}NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus\n") == "kernel log"
    assert kind_of("nothing") is None


SECRETS = "hunter2", "hf_abcdefghijklmnop", "s3cr3tvalue"


def test_secrets_are_in_no_bundle_and_no_result(tmp_path: Path) -> None:
    snapshot = Snapshot(
        files={
            "/proc/mounts": "//files/a /data cifs rw,username=me,password=hunter2 0 0\n",
            "/proc/cmdline": "quiet ks=http://me:hunter2@boot/ks",
        },
        outputs={"kernel log": Output(text="[ 1.0] Linux version 6\n[ 2.0] token=hf_abcdefghijklmnop\n")},
        environment={"NCCL_SECRET_TOKEN": "s3cr3tvalue", "NCCL_DEBUG": "INFO"},
    )
    text = bundle_bytes(without_secrets(snapshot)).decode()
    assert [secret for secret in SECRETS if secret in text] == []
    assert '"NCCL_DEBUG": "INFO"' in text
    bundle = tmp_path / "raw.json"
    bundle.write_bytes(bundle_bytes(snapshot))
    done = doctor("--json", "--from", bundle)
    assert [secret for secret in SECRETS if secret in done.stdout] == []


def test_a_secret_in_the_environment_is_not_captured(tmp_path: Path) -> None:
    bundle = tmp_path / "machine.json"
    doctor("--capture", bundle, environment={"HF_TOKEN": "hf_abcdefghijklmnop", "NCCL_X_PASSWORD": "hunter2"})
    assert [secret for secret in SECRETS if secret in bundle.read_text()] == []


def host(name: str, snapshot: Snapshot, folder: Path, **variables: str) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(bundle_bytes(msgspec.structs.replace(snapshot, host=name, environment=variables)))
    return path


def test_a_host_unlike_the_others_is_named(tmp_path: Path) -> None:
    for number in range(4):
        host(f"node-{number}", smi(), tmp_path)
    odd = smi(*[{"GPU Power Readings/Current Power Limit": "500.00 W"}] * 4, num=3)
    host("node-9", odd, tmp_path, NCCL_P2P_LEVEL="LOC")
    done = doctor("--hosts", "--json", tmp_path)
    content = json.loads(done.stdout)
    assert content["schema"] == "flatout/doctor-hosts"
    found = {difference["fact"]: difference["hosts"] for difference in content["differences"]}
    for fact in ("number of GPUs", "NCCL settings", "power limit of the GPUs", "check nccl-peer-to-peer"):
        assert found[fact] == ["node-9"], fact
    assert "kernel" in content["not_compared"]
    compared = {one["fact"]: (one["num_hosts"], one["usual"], one["unlike"]) for one in content["compared"]}
    assert compared["number of GPUs"] == (5, "4", {"node-9": "3"})
    assert compared["power limit of the GPUs"] == (5, "700 W", {"node-9": "500 W"})
    assert compared["driver"][2] == {}
    assert "node-9" in doctor("--hosts", tmp_path).stdout
    assert doctor("--hosts", tmp_path, "--fail-on", "warn").returncode == 1


def test_hosts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        host("node", smi(), tmp_path / name)
        (tmp_path / name / "node.json").rename(tmp_path / f"{name}.json")
    done = doctor("--hosts", tmp_path / "first.json", tmp_path / "second.json")
    assert "  node: " in done.stdout
    assert "  node (second.json): " in done.stdout


def test_hosts_that_are_alike_have_no_difference(tmp_path: Path) -> None:
    for number in range(4):
        host(f"node-{number}", smi(), tmp_path)
    content = json.loads(doctor("--hosts", "--json", tmp_path).stdout)
    assert content["differences"] == []
    assert len(content["hosts"]) == 4


def test_of_too_few_hosts_that_all_give_a_number_no_reason_is_made_up(tmp_path: Path) -> None:
    for number in range(2):
        host(f"node-{number}", smi(), tmp_path)
    told = json.loads(doctor("--hosts", "--json", tmp_path).stdout)["not_compared"]
    assert told["clock of busy GPUs"] == "2 of 2 hosts report a value, and 4 are needed"
    assert told["kernel"].startswith("0 of 2 hosts report a value: ")


@pytest.mark.parametrize("has_field", [False, True], ids=["before is_missing", "now"])
def test_a_bundle_says_which_command_is_not_installed(tmp_path: Path, has_field: bool) -> None:
    """Bundles from before `is_missing` say it by the problem alone."""
    absent = Output(problem="there is no `nvidia-smi` here", is_missing=True)
    ended = Output(problem="it ended with code 9: no device")
    bundle = json.loads(bundle_bytes(Snapshot(outputs={"nvidia-smi -q": absent, "nvidia-smi -L": ended})))
    if not has_field:
        for output in bundle["snapshot"]["outputs"].values():
            del output["is_missing"]
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(bundle))
    assert read_inputs([path]).outputs == {"nvidia-smi -q": absent, "nvidia-smi -L": ended}
