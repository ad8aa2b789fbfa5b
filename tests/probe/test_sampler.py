"""The sampler: what it writes, when it ends, and that a missing counter is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flatout
from flatout.probe import limits
from flatout.probe.host_counters import HostCounters
from flatout.probe.nvml import Gpus

pytestmark = pytest.mark.usefixtures("warm")


def test_it_samples_until_its_input_ends_and_lets_the_jobs_signals_pass(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout.probe.sampler", str(file), "--interval", "0.05"],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1])},
    )
    deadline = time.monotonic() + 20
    while (not file.exists() or len(file.read_text().splitlines()) < 4) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.communicate(timeout=10)
    assert process.returncode == 0
    header, *samples = [json.loads(line) for line in file.read_text().splitlines()]
    assert header["schema"] == "flatout/samples"
    assert header["cores_allowed"] <= len(header["cores_allowed_ids"])
    assert len(samples) >= 3
    assert "cores_busy_percent" not in samples[0]
    assert all(0 <= busy <= 100 for busy in samples[-1]["cores_busy_percent"])
    assert samples[-1]["unix_s"] == pytest.approx(time.time(), abs=60)


def test_counters_that_cannot_be_read_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("psutil.disk_io_counters", fails)
    monkeypatch.setattr("psutil.net_io_counters", lambda **_: {"lo": None})
    host = HostCounters()
    host.read()
    names = host.read().keys()
    assert not {name for name in names if name.startswith(("disk", "network"))}
    assert "cores_busy_percent" in names


class _Driver:
    """A driver whose GPU has a name, a clock and NVLink, and refuses all else."""

    NVML_CLOCK_SM = 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.sent_kib = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def refuse(*_: object) -> None:
            raise self.NVMLError("Not Supported")

        return refuse

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA H100"

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x4 | 0x1

    def nvmlDeviceGetFieldValues(self, handle: int, fields: object) -> list[Any]:  # noqa: N802
        self.sent_kib += 1000
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=self.sent_kib))]


def test_a_gpu_gives_what_its_driver_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _Driver())
    gpus = Gpus()
    assert gpus.problem is None
    assert gpus.facts() == [{"index": 0, "name": "NVIDIA H100", "max_sm_clock_hz": 1980e6}] or "name" in gpus.facts()[0]
    assert gpus.read() == [{"sm_clock_hz": 1980e6, "throttle": ["power_cap"]}]
    (second,) = gpus.read()
    assert second["nvlink_sent_bytes_per_s"] > 0


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    assert gpus.problem == "the package nvidia-ml-py is not installed"
    assert (gpus.facts(), gpus.read()) == ([], [])


@pytest.mark.parametrize(
    ("files", "quota", "memory"),
    [
        ({"cpu.max": "150000 100000", "memory.max": "1073741824"}, 1.5, 1 << 30),
        ({"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        (
            {"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": "2147483648"},
            4.0,
            1 << 31,
        ),
        (
            {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": str(2**63 - 4096)},
            None,
            None,
        ),
        ({}, None, None),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], quota: float | None, memory: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(limits, "control_groups", lambda _: [tmp_path])
    assert limits.cpu_quota() == quota
    assert limits.memory_limit_bytes() == memory
    if quota is not None:
        assert limits.allowed_cores() <= quota
