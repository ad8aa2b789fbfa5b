"""Secrets planted in a command, its environment, its exception and its output are in no file and no message.

Only the job's own output passes through as it is, and what is run has its real arguments.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.emit.tunings import every_change, tuning

from flatout.emit.masked import masked_note, masked_tuning
from flatout.emit.targets import TARGETS
from flatout.emit.write import write

pytestmark = pytest.mark.usefixtures("warm")

IN_COMMAND, IN_ENVIRONMENT = "cmd-5ecret-1a2b", "env-5ecret-3c4d"
IN_MESSAGE, IN_OUTPUT = "exc-5ecret-5e6f", "log-5ecret-7a8b"
SECRETS = (IN_COMMAND, IN_ENVIRONMENT, IN_MESSAGE, IN_OUTPUT)
# The script is written without its secrets: they come from its arguments, its environment and two numbers.
SCRIPT = """\
import os, sys
message, output = ("-".join((kind, "5ecret", end)) for kind, end in (("exc", "5e6f"), ("log", "7a8b")))
assert sys.argv[2] == "-".join(("cmd", "5ecret", "1a2b")), "what is run is never masked"
print("Authorization: Bearer " + output, flush=True)
print("password=" + output, file=sys.stderr, flush=True)
%s
try:
    raise ValueError("server said: " + os.environ["WANDB_API_KEY"])
except ValueError as error:
    raise RuntimeError(f"GET https://me:{message}@hub/x?sig={message} with {sys.argv[2]}") from error
"""
TRAINING = """\
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


def _flatout(folder: Path, *arguments: str, body: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT % body)
    command = [sys.executable, "train.py", "--api-key", IN_COMMAND]
    return subprocess.run(
        [sys.executable, "-m", "flatout", *arguments, "--", *command],
        cwd=folder,
        env={**os.environ, "WANDB_API_KEY": IN_ENVIRONMENT, "NCCL_X_PASSWORD": IN_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _contents(folder: Path) -> dict[str, bytes]:
    contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "train.py":
            data = path.read_bytes()
            contents[str(path.relative_to(folder))] = gzip.decompress(data) if path.suffix == ".gz" else data
    return contents


def _leaks(folder: Path) -> list[str]:
    return [name for name, data in _contents(folder).items() if any(secret.encode() in data for secret in SECRETS)]


def _public(folder: Path) -> list[str]:
    """Return the files that hold the command or a masked text and that others can read."""
    return [
        name
        for name, data in _contents(folder).items()
        if (b"train.py" in data or b"***" in data) and stat.S_IMODE((folder / name).stat().st_mode) & 0o077
    ]


def _of_flatout(done: subprocess.CompletedProcess[str]) -> str:
    """Return what Flatout itself says: its notes, errors and hints, not the lines of the job."""
    beginnings = ("flatout:", "error:", "hint:", "next:")
    return "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith(beginnings))


def test_a_recording_of_a_job_that_failed_has_none(tmp_path: Path) -> None:
    done = _flatout(tmp_path, "profile", "--out", "rec", body=TRAINING)
    assert done.returncode == 1
    assert IN_OUTPUT in done.stdout and IN_MESSAGE in done.stderr, "the job's own output is passed through untouched"
    (failure,) = (tmp_path / "rec").glob("failure-*.json")
    noted = json.loads(failure.read_text())
    assert noted["message"] == "GET https://me:***@hub/x?sig=*** with ***"
    assert noted["chain"] == [{"exception": "ValueError", "message": "server said: ***"}]
    (host,) = (tmp_path / "rec").glob("host-*[!s].json")
    assert json.loads(host.read_text())["command"][-2:] == ["--api-key", "***"]
    assert _leaks(tmp_path) == []
    assert _public(tmp_path) == []
    assert [secret for secret in SECRETS if secret in _of_flatout(done)] == []
    shown = subprocess.run(
        [sys.executable, "-m", "flatout", "diagnose", "rec", "--html", "page.html"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert [secret for secret in SECRETS if secret in shown.stdout + shown.stderr] == []
    assert _leaks(tmp_path) == []


def test_a_job_that_is_kept_alive_leaves_none(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = _flatout(tmp_path, "run", "--max-restarts", "1", "--ledger", "l.jsonl")
    assert done.returncode == 1
    assert "RuntimeError" in (tmp_path / "l.jsonl").read_text()
    assert _leaks(tmp_path) == []
    assert _public(tmp_path) == []
    assert [secret for secret in SECRETS if secret in _of_flatout(done)] == []


def test_what_is_shown_without_running_it_is_masked_and_says_so(tmp_path: Path) -> None:
    done = _flatout(tmp_path, "run", "--dry-run")
    assert "--api-key '***'" in done.stdout and IN_COMMAND not in done.stdout
    assert "values that look like secrets are *** in this command" in done.stderr


def test_a_tuning_whose_job_fails_leaves_none(tmp_path: Path) -> None:
    done = _flatout(tmp_path, "tune", "--out", "t", "--budget", "60s")
    assert done.returncode == 2
    output = next((tmp_path / "t").rglob("output.log")).read_text()
    assert "Authorization: Bearer ***" in output and "RuntimeError" in output
    assert (tmp_path / "t" / "journal.jsonl").exists()
    assert _leaks(tmp_path) == []
    assert _public(tmp_path) == []
    assert [secret for secret in SECRETS if secret in done.stdout + done.stderr] == []


def test_a_submitted_job_has_them_and_its_copy_has_none(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", "echo 'Slurmctld(primary) at n1 is UP'"), ("sbatch", "cat > ../queued; echo 7")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "flatout", "submit", "--to", "slurm", "--out", "job"]
    command = ["python", "train.py", "--api-key", IN_COMMAND]
    done = subprocess.run(
        [*words, "--", *command], cwd=work, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert IN_COMMAND in (tmp_path / "queued").read_text()
    copy = (work / "job" / "job.sbatch").read_text()
    assert "'***'" in copy and "Values that look like secrets are *** in the command" in copy
    assert _leaks(work) == []
    assert _public(work) == []
    assert IN_COMMAND not in done.stdout + done.stderr
    assert "note: values that look like secrets are *** in the written command" in done.stdout
    manifest = subprocess.run(
        [*words[:4], "--to", "kubernetes", "--image", "i", "--out", "pods", "--", *command],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert manifest.returncode == 0, manifest.stderr
    assert _leaks(work) == [] and _public(work) == []
    assert IN_COMMAND not in manifest.stdout + manifest.stderr


@pytest.mark.parametrize("target", list(TARGETS))
def test_an_emitted_file_has_none_and_says_what_to_fill_in(target: str, tmp_path: Path) -> None:
    command = ("torchrun", "--nproc-per-node=4", "train.py", "--api-key", IN_COMMAND)
    path = write(TARGETS[target](masked_tuning(tuning(*every_change()[:1], command=command))), tmp_path)
    text = path.read_text()
    assert IN_COMMAND not in text
    says = "Values that look like secrets are *** in the command: before you run it" in text
    assert says == ("--api-key" in text), "said where the command is, and only there"
    assert says == (target in ("tuned-toml", "torchrun", "slurm", "kubernetes", "ray-job"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_command_without_secrets_needs_no_word_about_them() -> None:
    plain = tuning(command=("torchrun", "train.py", "--lr", "0.1"))
    assert masked_note(plain) == ()
    assert all("secrets" not in emit(masked_tuning(plain)).text for emit in TARGETS.values())
    assert len(masked_note(tuning(command=("python", "train.py", "--api-key", IN_COMMAND)))) == 1


def test_a_capture_of_a_machine_has_none(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(f"[ 1.0] Linux version 6.8\n[ 2.0] mount.cifs: password={IN_OUTPUT}\n[ 3.0] NVRM: loading\n")
    environment = {**os.environ, "NCCL_X_PASSWORD": IN_ENVIRONMENT, "NCCL_DEBUG_FILE": f"https://me:{IN_MESSAGE}@h/x"}
    read = ["--from", "dmesg.txt"]
    for words in (["--capture", "machine.json"], [*read, "--json"], [*read, "--html", "page.html"]):
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "doctor", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert [secret for secret in SECRETS if secret in done.stdout + done.stderr] == []
    log.unlink()
    assert (tmp_path / "machine.json").exists()
    assert _leaks(tmp_path) == []
