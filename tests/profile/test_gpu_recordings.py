"""Recordings of public scripts, unmodified, on two H200: what is read from them again on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from flatout.api.jobs import _read_recording
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.launch.local import ExitStatus
from flatout.profile import read_recording

GOLDEN = Path(__file__).with_name("golden")


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}_2xh200.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@pytest.mark.parametrize(
    ("name", "step_ms", "mean_ms", "samples_per_s", "mfu", "gib"),
    [
        # Untraced steps and memory as printed when they were recorded; the MFU then, of the untraced step, was 0.079
        # and 0.36. nanoGPT has no DataLoader, so nobody counted its samples. The rates are the sum of all rows' samples
        # over the sum of their durations, for `imagenet` without the second of its first step that is no waiting (1499
        # samples/s with it). `imagenet` waits 12 s for its first batch, and every fourth step is late.
        ("nanogpt_ddp", 30.2, 32.5, None, 0.079 * 30.2 / 32.5, 2.83),
        ("imagenet", 28.2, 84.0, 1524, 0.36 * 28.2 / 84.0, 1.63),
        ("trainer", 53.4, 53.4, 1198, None, 110 / 1024),
    ],
)
def test_a_recording_tells_on_another_machine_what_it_told_on_its_own(
    tmp_path: Path,
    name: str,
    step_ms: float,
    mean_ms: float,
    samples_per_s: float | None,
    mfu: float | None,
    gib: float,
) -> None:
    diagnosis = diagnose_paths([unpacked(name, tmp_path)]).diagnosis
    job = diagnosis.job
    assert (job.num_ranks, job.num_steps, job.device) == (2, 3, "NVIDIA H200")
    assert job.untraced_step_s == pytest.approx(step_ms / 1e3, rel=0.01)
    assert job.mean_step_s == pytest.approx(mean_ms / 1e3, rel=0.01)
    assert job.samples_per_s == (None if samples_per_s is None else pytest.approx(samples_per_s, rel=0.01))
    assert job.mfu == (None if mfu is None else pytest.approx(mfu, rel=0.02))
    assert job.peak_memory_bytes == pytest.approx(gib * 2**30, rel=0.01)
    assert isinstance(job.reasons, dict)
    missing = {key for key in ("samples_per_s", "mfu") if getattr(job, key) is None}
    assert missing <= set(job.reasons), "a missing number has its reason"
    assert job.step_s is not None and job.step_s > job.untraced_step_s, "the recorder costs something here"
    for rank in diagnosis.ranks:
        assert sum(rank.parts_s.values()) == pytest.approx(rank.window_s, abs=1e-6)


def test_the_gpu_was_watched_beside_the_job(tmp_path: Path) -> None:
    recording = read_recording(unpacked("imagenet", tmp_path))
    (host,) = recording.hosts
    assert len(host.gpus) == 2
    for gpu in host.gpus:
        assert gpu.name == "NVIDIA H200"
        assert gpu.power_w is not None and 50 < gpu.power_w < 720
        assert gpu.sm_clock_hz is not None and 3e8 < gpu.sm_clock_hz < 2.5e9
    assert host.cores_allowed == 32


def test_host_costs_are_scaled_by_the_untraced_step(tmp_path: Path) -> None:
    diagnosis = diagnose_paths([unpacked("nanogpt_ddp", tmp_path)]).diagnosis
    finding = diagnosis.findings[0]
    assert finding.name == "host-bound"
    assert finding.evidence["recorder_cost_source"] == "measured"
    job = diagnosis.job
    assert job.step_s is not None and job.untraced_step_s is not None
    assert finding.evidence["recorder_cost_s"] == pytest.approx(job.step_s - job.untraced_step_s)
    assert finding.evidence["cores_allowed"] == 32


def test_a_recording_without_a_trace_says_why(tmp_path: Path) -> None:
    diagnosis = diagnose_paths([unpacked("fsdp2_short", tmp_path)]).diagnosis
    notes = [note.problem for note in diagnosis.data_quality]
    assert any(note.startswith("the recording has no trace: the job ended after 10 steps") for note in notes)


@pytest.mark.parametrize("light", [False, True])
def test_a_job_that_ended_before_its_trace_is_diagnosed_from_its_steps_unless_none_was_asked_for(
    light: bool, tmp_path: Path
) -> None:
    ended = ExitStatus(code=0, signal=None, start_unix_s=0.0, end_unix_s=1.0)
    result = _read_recording(unpacked("fsdp2_short", tmp_path), ended, None, light=light)
    assert result.error is None
    assert (result.diagnosis is None) == light


def test_the_ten_steps_of_fsdp2_are_enough_for_a_trace(tmp_path: Path) -> None:
    """With `--warmup 0 --steps 2`."""
    folder = unpacked("fsdp2", tmp_path)
    assert {tuple(rank.traced_steps) for rank in read_recording(folder).ranks} == {(7, 8)}
    diagnosis = diagnose_paths([folder]).diagnosis
    assert (diagnosis.job.num_ranks, diagnosis.job.num_steps, diagnosis.job.device) == (2, 2, "NVIDIA H200")
    assert diagnosis.findings[0].name == "host-bound"
    assert diagnosis.job.untraced_step_s == pytest.approx(0.070, rel=0.01)


def test_the_json_of_a_recording_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    folder = unpacked("trainer", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "diagnose", str(folder), "--json"], capture_output=True, check=True
    )
    job = json.loads(done.stdout)["job"]
    assert {"samples_per_s", "tokens_per_s", "mfu", "peak_memory_bytes", "reasons"} <= set(job)
    assert job["tokens_per_s"] == pytest.approx(49_094, rel=0.001)  # 41 tokens per sample, 64 samples in 53.45 ms
    assert job["mfu"] is None and job["reasons"]["mfu"]
