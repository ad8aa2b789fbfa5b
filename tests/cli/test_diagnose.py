"""`flatout diagnose` and `flatout diff` as a user runs them: arguments that are refused, and how output ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.read.samples import small_trace

pytestmark = pytest.mark.usefixtures("warm")


def flatout(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "the job"
    folder.mkdir()
    (folder / "rank0.json").write_text(json.dumps(small_trace(distributedInfo={"rank": 0})))
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "rank0.json=\u00b2"], "`--rank` must be FILE=N"),
        (["--rank", "rank0.json=1048576"], "`--rank` must be FILE=N"),
        (["--rank", f"rank0.json={'9' * 5000}"], "`--rank` must be FILE=N"),
        (["--untraced-step", "1e6"], "`--untraced-step` must be a duration above 0s and at most 10d"),
        (["--untraced-step", "nan"], "`--untraced-step` must be a duration above 0s"),
        (["--html", "out", "--perfetto", "./out"], "`--html` and `--perfetto` must be different files"),
        ([""], "a path must not be empty"),
    ],
)
def test_arguments_that_are_refused(job: Path, arguments: list[str], message: str) -> None:
    done = flatout("diagnose", job, *arguments, cwd=job)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}") and "internal" not in done.stderr
    assert not (job / "out").exists()


def test_several_hosts_are_told_where_the_traces_name_them(job: Path) -> None:
    (job / "rank1.json").write_text(json.dumps(small_trace(distributedInfo={"rank": 1}, host_name="b")))
    one = flatout("diagnose", job, "--json", cwd=job)
    assert "hosts" not in json.loads(one.stdout)["job"]
    (job / "rank0.json").write_text(json.dumps(small_trace(distributedInfo={"rank": 0}, host_name="a")))
    assert "2 of 4 ranks on 2 hosts" in flatout("diagnose", job, cwd=job).stdout
    assert json.loads(flatout("diagnose", job, "--json", cwd=job).stdout)["job"]["hosts"] == ["a", "b"]


def test_the_trace_for_perfetto_tells_what_it_lacks(job: Path) -> None:
    trace = small_trace(distributedInfo={"rank": 0})
    trace["traceEvents"].append({"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": "never"})
    (job / "rank0.json").write_text(json.dumps(trace))
    done = flatout("diagnose", job, "--perfetto", "out.json", cwd=job)
    assert "note: out.json lacks 1 event of rank 0: no usable time" in done.stderr
    assert "wrote the trace for ui.perfetto.dev: out.json" in done.stderr
    assert len(json.loads((job / "out.json").read_bytes())["traceEvents"]) > len(trace["traceEvents"]) - 1


def test_json_of_a_file_whose_name_is_no_utf8(job: Path) -> None:
    path = os.fsdecode(os.fsencode(job) + b"/rank\xff.json")
    (job / "rank0.json").rename(path)
    done = flatout("diagnose", path, "--json", cwd=job)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"][2].endswith(r"rank\udcff.json")


def test_the_next_command_of_a_diff(job: Path) -> None:
    (job / "saved.json").write_text(flatout("diagnose", job, "--json", cwd=job).stdout)
    saved = flatout("diff", "saved.json", "saved.json", cwd=job)
    assert saved.returncode == 0, saved.stderr
    assert "flatout diagnose" not in saved.stdout
    traces = flatout("diff", "saved.json", "../the job", cwd=job)
    assert "next: flatout diagnose '../the job'" in traces.stdout


def test_the_next_command_has_what_was_given(job: Path) -> None:
    done = flatout("diagnose", "rank0.json", "--rank=rank0.json=3", "--untraced-step", "0.5", "--force", cwd=job)
    said = " ".join(done.stdout.split())
    assert said.endswith("next: flatout diagnose rank0.json --rank=rank0.json=3 --untraced-step 0.5 --html report.html")


def test_bytes_of_a_file_that_is_no_trace_are_shown_without_the_marks_of_a_language(job: Path) -> None:
    (job / "other.bin").write_bytes(b"\xff\xfe,\x00more")
    done = flatout("diagnose", "other.bin", cwd=job)
    assert done.returncode == 2
    assert "it begins with `\\xff\\xfe,\\x00more`" in done.stderr and "b'" not in done.stderr
