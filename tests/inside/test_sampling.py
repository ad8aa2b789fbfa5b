"""A rank without a parent on its host starts the sampler, which ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.profile.runs import environment, job

import flatout
from flatout.inside.identity import Identity
from flatout.inside.recording.sampling import start_sampler
from flatout.profile import read_recording

pytestmark = pytest.mark.usefixtures("warm")

STARTUP = Path(flatout.__file__).parent / "inside" / "startup"
HOST = os.uname().nodename


def without_parent(recording: Path, *arguments: object) -> subprocess.Popen[str]:
    """A job whose environment is that of `flatout profile` on another host."""
    recording.mkdir()
    (recording / "recording.json").write_text("{}")
    (recording / ".state").mkdir()
    variables = environment(FLATOUT_RECORDING=str(recording), FLATOUT_LIGHT="1")
    variables["PYTHONPATH"] = str(STARTUP)
    return subprocess.Popen(job(*arguments), env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def samplers(recording: Path) -> list[int]:
    """The processes that sample to this recording."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{recording}/host-" in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(what: object) -> None:
    deadline = time.monotonic() + 15
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_sampler_ends_with_the_rank(tmp_path: Path, is_killed: bool) -> None:
    recording = tmp_path / "r"
    rank = without_parent(recording, "--steps", 100_000 if is_killed else 400)
    samples = recording / f"host-{HOST}.samples.jsonl"
    wait_until(lambda: samples.exists() and samples.read_text().count("\n") > 1)
    (sampler,) = samplers(recording)
    parent = int(Path(f"/proc/{sampler}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != rank.pid
    if is_killed:
        rank.send_signal(signal.SIGKILL)
    rank.communicate(timeout=60)  # its streams are not held open
    wait_until(lambda: not samplers(recording))
    read = read_recording(recording)
    assert [host.hostname for host in read.hosts] == [HOST]
    assert not any("sampled" in one.problem for one in read.problems)


def identity(local_rank: int | None) -> Identity:
    return Identity(rank=local_rank or 0, world_size=2, local_rank=local_rank, backend=None, num_nodes=2)


def test_one_rank_starts_one_sampler_where_nobody_else_does(tmp_path: Path) -> None:
    assert not start_sampler(tmp_path, identity(1))
    (tmp_path / f"host-{HOST}.json").touch()
    assert not start_sampler(tmp_path, identity(0))


def test_a_python_without_psutil_samples_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty" / "psutil").mkdir(parents=True)
    (tmp_path / "empty" / "psutil" / "__init__.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "stderr", None)
    assert start_sampler(tmp_path, identity(0))
    wait_until(lambda: not samplers(tmp_path))
    assert not list(tmp_path.glob("host-*"))
    header = {"rank": 0, "world_size": 1, "hostname": HOST, "device": None, "backend": None, "torch": "2.13.0"}
    header |= {"steps_from": "optimizer", "base_unix_ns": 0, "columns": ["kind"]}
    from flatout.inside.recording.step_file import StepFile

    StepFile(tmp_path, 0, header).close(0)
    (tmp_path / "recording.json").write_text(json.dumps({}))
    said = [one.problem for one in read_recording(tmp_path).problems]
    assert f"1 of 1 hosts were not sampled: {HOST}" in said
