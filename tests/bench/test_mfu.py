"""The MFU of a recording is of the vendor's peak, or of what `flatout bench` measured on its hosts, and says which."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.inside.protocol import STEP_COLUMNS
from flatout.inside.recording.step_file import SCHEMA
from flatout.probe.ceilings.saved import saved_path
from flatout.profile import read_recording
from flatout.recorded_job_pipeline import with_known_ceilings
from flatout.records.ceilings import Ceilings, Measurement
from flatout.records.recording import Recording
from flatout.report.json import enveloped_json
from flatout.report.recording_text import recording_lines

pytestmark = pytest.mark.usefixtures("warm")

GPU = "NVIDIA H100 80GB HBM3"
STEP_FLOPS = {"bf16": 4e13}


def header(rank: int, *, device: object) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "version": 1,
        "rank": rank,
        "world_size": 2,
        "hostname": "h1",
        "device": device,
        "backend": None,
        "torch": "2.13.0",
        "steps_from": "optimizer",
        "base_unix_ns": 10**18,
        "columns": list(STEP_COLUMNS),
    }


def recording(folder: Path, *, on_gpu: bool) -> Recording:
    """Two ranks on one host, each with steps of 0.1 s and 4e13 FLOP."""
    folder.mkdir()
    (folder / "recording.json").write_text("{}")
    others = [0] * (len(STEP_COLUMNS) - 13)
    for rank in (0, 1):
        device = {"index": rank, "name": GPU, "memory_bytes": 1, "uuid": None} if on_gpu else None
        lines: list[object] = [header(rank, device=device)]
        lines += [[n, n * 10**8, 10**8, 0, 0, None, None, 1, None, "", None, 5 + n, 0, *others] for n in range(20)]
        lines.append({"event": "plan", "generation": 0, "settled": 10, "flops_step": 15, "start": 19, "num_steps": 1})
        lines.append({"event": "flops", "flops_by_type": STEP_FLOPS, "problem": None})
        (folder / f"rank{rank}.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_recording(folder)


def ceilings(rate: float, *, is_gpu: bool, device: str = GPU, dtype: str = "bf16") -> Ceilings:
    one = Measurement(
        name="matmul", value=rate, unit="FLOP/s", spread=0.0, device=device, ranks=(0,), n=3, seconds=1.0,
        checked="entries", dtype=dtype, shape=(1, 1, 1),
    )  # fmt: skip
    return Ceilings(
        host="h1", taken_at="2026-01-01", took_s=1.0, device=device, num_devices=2, is_gpu=is_gpu, backend="nccl",
        software="torch", measurements=(one,),
    )  # fmt: skip


def file(found: Ceilings, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(enveloped_json("flatout/ceilings", 1, ["flatout"], found))
    return path


def words(path: Path) -> str:
    """What `flatout profile` says of a recording in the end."""
    return "\n".join(recording_lines(with_known_ceilings(read_recording(path)), "there"))


def test_without_ceilings_it_is_of_the_vendors_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))
    measured = with_known_ceilings(recording(tmp_path / "r", on_gpu=True)).measured
    assert measured.mfu == pytest.approx(4e13 / 989.4e12 / 0.1, rel=1e-3)
    assert measured.mfu_against == "vendor"
    assert "of the vendor's peak" in words(tmp_path / "r")


def test_what_was_saved_of_its_host_takes_the_vendors_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file(ceilings(8e14, is_gpu=True), saved_path("h1"))
    measured = with_known_ceilings(recording(tmp_path / "r", on_gpu=True)).measured
    assert measured.mfu == pytest.approx(4e13 / 8e14 / 0.1)  # 0.5, each GPU with a ceiling of its own
    assert measured.mfu_against == "measured"
    assert "MFU 50 % of the measured ceiling" in words(tmp_path / "r")


def test_ranks_on_a_cpu_share_its_ceiling(tmp_path: Path) -> None:
    path = file(ceilings(1e15, is_gpu=False, device="a CPU"), tmp_path / "c.json")
    measured = with_known_ceilings(recording(tmp_path / "r", on_gpu=False), path).measured
    assert measured.mfu == pytest.approx(2 * 4e13 / 1e15 / 0.1)
    assert measured.mfu_against == "measured"


@pytest.mark.parametrize(
    "change",
    [{"device": "NVIDIA A100"}, {"is_gpu": False}, {"dtype": "fp16"}],
    ids=["another GPU", "a CPU", "no such type"],
)
def test_ceilings_of_something_else_are_not_used(tmp_path: Path, change: dict[str, object]) -> None:
    given = {"is_gpu": True, **change}
    path = file(ceilings(8e14, **given), tmp_path / "c.json")  # type: ignore[arg-type]
    assert with_known_ceilings(recording(tmp_path / "r", on_gpu=True), path).measured.mfu_against == "vendor"


def test_ceilings_with_a_wrong_result_are_not_used(tmp_path: Path) -> None:
    from flatout.records.ceilings import WrongResult

    wrong = WrongResult(name="matmul", what="fp16", ranks=(0,), reason="3 entries are wrong")
    path = file(msgspec.structs.replace(ceilings(8e14, is_gpu=True), wrong=(wrong,)), tmp_path / "c.json")
    assert with_known_ceilings(recording(tmp_path / "r", on_gpu=True), path).measured.mfu_against == "vendor"


def test_a_finding_is_of_what_was_measured_and_says_so() -> None:
    """fp32 at 50 and tf32 at 400 TFLOP/s, measured: a half of the ratio is 4, which saves 3.75 of 5 ms."""
    from tests.diagnose.jobs import attributed, found
    from tests.diagnose.rules.test_no_tensor_cores import multiplying

    job = attributed(multiplying(5000, device=GPU))
    host = job.timelines[0].meta.hostname or ""
    measured = ceilings(5e13, is_gpu=True, dtype="fp32")
    both = (*measured.measurements, *ceilings(4e14, is_gpu=True, dtype="tf32").measurements)
    measured = msgspec.structs.replace(measured, measurements=both)
    finding = found(diagnose(job, untraced=Untraced(step_s=1e6), ceilings={host: measured}), "no-tensor-cores")
    assert finding.evidence["peaks_from"] == "measured"
    assert finding.evidence["assumed_speedup"] == 4.0
    assert finding.cost_s_per_step == pytest.approx(3.75e-3, rel=0.01)
    other = msgspec.structs.replace(measured, device="NVIDIA A100-SXM4-80GB")
    for known in ({}, {host: other}):
        finding = found(diagnose(job, untraced=Untraced(step_s=1e6), ceilings=known), "no-tensor-cores")
        assert finding.evidence["peaks_from"] == "vendor"


def test_given_ceilings_of_another_device_are_not_used_which_is_said(tmp_path: Path) -> None:
    traces = Path(__file__).parents[2] / "examples" / "traces" / "straggler.tar.xz"
    for device, is_told in (("NVIDIA A100-SXM4-80GB", True), ("NVIDIA H200", False)):
        path = file(ceilings(8e14, is_gpu=True, device=device), tmp_path / device)
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "diagnose", str(traces), "--ceilings", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        said = f"note: {path} was not used: it was measured on {device}, but the job ran on NVIDIA H200"
        assert (said in done.stderr) == is_told
