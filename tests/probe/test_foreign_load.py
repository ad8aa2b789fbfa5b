"""Cores that others keep busy, against real processes that burn a known share of one."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import psutil
import pytest

import flatout
from flatout.probe import foreign_load
from flatout.probe.foreign_load import ForeignLoad
from flatout.profile import read_recording

pytestmark = pytest.mark.usefixtures("warm")

BURN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
# One after the other, each for a tenth of a second: most are never seen while they run.
BURN_IN_CHILDREN = """
import subprocess, sys
child = "import time; end = time.process_time() + 0.1\\nwhile time.process_time() < end: pass"
while True:
    subprocess.run([sys.executable, "-S", "-c", child])
"""


@contextmanager
def running(code: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **variables})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def used_s(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU seconds of a process and its children, as the kernel counts them."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_a_stranger_counts_with_the_share_of_a_core_that_it_uses(tmp_path: Path) -> None:
    load = ForeignLoad(set(), str(tmp_path))  # of a job without processes: all are others
    with running(BURN) as process:
        time.sleep(0.3)
        load.read()
        before, began = used_s(process), time.monotonic()
        time.sleep(1.5)
        found = load.read()
        share = (used_s(process) - before) / (time.monotonic() - began)
    assert found is not None and share > 0.03
    assert found >= 0.8 * share  # others may be at work too
    assert load.idle_cores is not None
    assert 0 <= load.idle_cores <= len(os.sched_getaffinity(0)) - 0.8 * share


@pytest.mark.parametrize("code", [BURN, BURN_IN_CHILDREN], ids=["one", "many"])
def test_what_the_job_uses_is_left_out(tmp_path: Path, code: str) -> None:
    """As a descendant, and by its mark; told beside one that counts it among the others, at the same time."""
    ways: list[tuple[set[int], dict[str, str]]] = [
        ({os.getpid()}, {}),
        (set(), {"FLATOUT_RECORDING": os.path.realpath(tmp_path)}),
    ]
    for roots, variables in ways:
        other = ForeignLoad(set(), str(tmp_path / "other"))
        with running(code, **variables) as process:
            time.sleep(0.3)
            load = ForeignLoad(roots, str(tmp_path))
            load.read()
            other.read()
            before, began = used_s(process), time.monotonic()
            time.sleep(2.0)
            without, with_it = load.read(), other.read()
            share = (used_s(process) - before) / (time.monotonic() - began)
        assert without is not None and with_it is not None and share > 0.03  # the machine may be crowded
        assert with_it - without == pytest.approx(share, abs=0.25 * share + 0.05)


def test_a_look_that_would_cost_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of processes: looking through them takes 50 ms of a core, so it is done once a second."""
    assert looks(tmp_path, monkeypatch, cpu_s=0.05) == [False, False, True, False, True]


def test_a_look_that_had_to_wait_for_a_core_costs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with more to run than cores: the load is wanted there most of all."""
    assert looks(tmp_path, monkeypatch, cpu_s=0.02, waits_s=0.5) == [False, True, True, True, True]


def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cpu_s: float, waits_s: float = 0.0) -> list[bool]:
    """Return whether each of five looks, half a second apart, tells the load. Each takes so long, and waits so long."""
    clock, used = [100.0], [7.0]
    monkeypatch.setattr(foreign_load.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(foreign_load.time, "thread_time", lambda: used[0])
    real = foreign_load._all_processes

    def slow():  # type: ignore[no-untyped-def]
        clock[0] += cpu_s + waits_s
        used[0] += cpu_s
        return real()

    monkeypatch.setattr(foreign_load, "_all_processes", slow)
    load = ForeignLoad({os.getpid()}, str(tmp_path))
    told = []
    for _ in range(5):
        told.append(load.read() is not None)
        time.sleep(0.05)
        clock[0] += 0.5
    return told


def test_counters_that_stand_still_are_no_idle_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes give zeros for all cores."""
    load = ForeignLoad({os.getpid()}, str(tmp_path))
    monkeypatch.setattr(load, "_busy_now", lambda: (0.0, 0.0))
    assert [load.read(), load.read()] == [None, None]


JOB = """
import time
import torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
end = time.monotonic() + 5
while time.monotonic() < end:
    for _ in range(20):
        model(torch.randn(64, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def busy_s() -> float:
    return sum(times.user + times.nice + times.system + times.steal for times in psutil.cpu_times(percpu=True))


@pytest.mark.parametrize("has_neighbour", [False, True])
def test_a_recorded_job_is_told_from_its_neighbour(tmp_path: Path, has_neighbour: bool) -> None:
    """Against all that this machine did, less what the kernel says that Flatout and the job used."""
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flatout", "profile", "--light", "--out", str(tmp_path / "out"), "--"]

    def own_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    with running(BURN if has_neighbour else "import time; time.sleep(60)") as neighbour:
        before, began = (busy_s(), own_s(), used_s(neighbour)), time.monotonic()
        subprocess.run([*command, sys.executable, str(tmp_path / "job.py")], env=environment, check=True, timeout=120)
        busy, own, strangers = (
            now - then for now, then in zip((busy_s(), own_s(), used_s(neighbour)), before, strict=True)
        )
        elapsed = time.monotonic() - began
    assert (strangers / elapsed > 0.03) == has_neighbour and own > 1.0
    (file,) = (tmp_path / "out").glob("*.samples.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    told = [sample["cores_busy_by_others"] for sample in samples if "cores_busy_by_others" in sample]
    assert fmean(told) == pytest.approx((busy - own) / elapsed, abs=0.3)
    (host,) = read_recording(tmp_path / "out").hosts
    assert host.cores_busy_by_others is not None and min(told) <= host.cores_busy_by_others <= max(told)
