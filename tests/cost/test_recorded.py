"""What a recording tells of its cost: public scripts recorded on two H200, and on the CPU."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest

from flatout.cli import main
from flatout.cost.recorded import recorded_attempt
from flatout.errors import InputError
from flatout.profile import read_recording

GOLDEN = Path(__file__).parents[1] / "profile" / "golden"


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def charged(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["flatout", "cost", "jobs", "--json", *arguments])
    assert main() == 0
    return json.loads(capfd.readouterr().out)  # type: ignore[no-any-return]


def test_a_recording_on_gpus_tells_used_from_idle_with_measured_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = unpacked("nanogpt_ddp_2xh200", tmp_path)
    # From the files themselves: the command's time, and the sampler's lines between its first and last step.
    (host_file,) = (file for file in path.glob("host-*.json") if "samples" not in file.name)
    host = json.loads(host_file.read_text())
    held_s = 2 * (host["end_unix_s"] - host["start_unix_s"])
    recording = read_recording(path)
    gpus = [gpu for each in recording.hosts for gpu in each.gpus]
    assert len(gpus) == 2
    busy = fmean(gpu.busy_share for gpu in gpus if gpu.busy_share is not None)
    power_w = fmean(gpu.power_w for gpu in gpus if gpu.power_w is not None)
    total = charged(monkeypatch, capfd, str(path), "--team", "vision")["total"]
    assert total["total"]["gpu_ms"] == round(held_s * 1000)
    assert total["used"]["gpu_ms"] == pytest.approx(held_s * 1000 * busy, abs=2)
    assert total["unsplit"]["gpu_ms"] == total["lost"]["gpu_ms"] == 0
    assert total["total"]["kwh"]["value"] == pytest.approx(held_s * power_w / 3.6e6 * 1.38 * 1.3, rel=1e-4)
    assert total["total"]["usd"]["value"] == pytest.approx(held_s / 3600 * 3.5, rel=1e-4)


def test_a_recording_tells_the_use_of_its_job_in_the_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = unpacked("nanogpt_ddp_2xh200", tmp_path)
    for file in path.glob("host-*.json"):
        host = json.loads(file.read_text())
        file.write_text(json.dumps(host | {"run_id": "slurm-77.0"}))
    jobs = tmp_path / "jobs.txt"
    jobs.write_text(
        "JobID|State|AllocTRES|ElapsedRaw|Account\n77|COMPLETED|gres/gpu:h200=2|3600|vision\n"
        "78|COMPLETED|gres/gpu:h200=2|3600|vision\n"
    )
    said = charged(monkeypatch, capfd, str(jobs), str(path))
    (team,) = said["teams"]
    assert (team["team"], team["total"]["gpu_hours"], team["num_jobs"]) == ("vision", 4.0, 2)
    assert team["unsplit"]["gpu_hours"] == 2.0
    assert 0 < team["used"]["gpu_hours"] < 2.0
    assert said["measured_share"] == 0.5


def test_a_recording_on_the_cpu_costs_no_gpu_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = unpacked("trainer_cpu", tmp_path)
    assert charged(monkeypatch, capfd, str(path))["total"]["total"]["gpu_ms"] == 0
    monkeypatch.setattr(sys, "argv", ["flatout", "cost", "jobs", str(path)])
    assert main() == 0
    assert "held a GPU" in capfd.readouterr().out


def test_how_a_recording_ended_is_its_state(tmp_path: Path) -> None:
    recording = read_recording(unpacked("nanogpt_ddp_2xh200", tmp_path))
    (run,) = recording.runs
    states = []
    for code, signal in ((0, None), (1, None), (None, 15), (None, 9)):
        ended = msgspec.structs.replace(run, exit_code=code, signal=signal)
        states.append(recorded_attempt(msgspec.structs.replace(recording, runs=(ended,)))[0].state)
    assert states == ["COMPLETED", "FAILED", "CANCELLED", "FAILED"]
    unended = msgspec.structs.replace(run, end_unix_s=None)
    with pytest.raises(InputError, match="does not say when its command ended"):
        recorded_attempt(msgspec.structs.replace(recording, runs=(unended,)))


@pytest.mark.parametrize(
    ("end_unix_s", "is_read"), [(253_402_300_799.0, True), (253_402_300_801.0, False), (1e19, False), (-1.0, False)]
)
def test_a_recording_ends_between_the_years_1970_and_9999(tmp_path: Path, end_unix_s: float, is_read: bool) -> None:
    recording = read_recording(unpacked("nanogpt_ddp_2xh200", tmp_path))
    (run,) = recording.runs
    damaged = msgspec.structs.replace(recording, runs=(msgspec.structs.replace(run, end_unix_s=end_unix_s),))
    if is_read:
        assert recorded_attempt(damaged)[0].end_s == end_unix_s
        return
    with pytest.raises(InputError, match="must start and end between the years 1970 and 9999"):
        recorded_attempt(damaged)


def test_with_a_gpu_that_nobody_saw_the_use_is_not_known(tmp_path: Path) -> None:
    recording = read_recording(unpacked("nanogpt_ddp_2xh200", tmp_path))
    hosts = tuple(msgspec.structs.replace(host, gpus=host.gpus[:1]) for host in recording.hosts)
    _, usage = recorded_attempt(msgspec.structs.replace(recording, hosts=hosts))
    assert (usage.busy_share, usage.power_w) == (None, None)
