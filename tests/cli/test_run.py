"""`flatout run`: a command with the changes of a tuned.toml that was written by hand, and else as it is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

TUNED = """\
schema = "flatout/tuned"
version = 1

[[change]]
name = "nccl-sockets=2x2+8"
knob = "nccl-sockets"
family = "nccl"
safety = "exact"
value = "2x2+8"
environment = { NCCL_SOCKET_NTHREADS = "2", NCCL_NSOCKS_PERTHREAD = "2", NCCL_MIN_NCHANNELS = "8" }

[[change]]
name = "dataloader-workers=4"
knob = "dataloader-workers"
family = "dataloader"
safety = "exact"
value = "4"
patch = { name = "dataloader", parameters = { num_workers = 4 } }

[[change]]
name = "threads=2"
knob = "threads"
family = "arguments"
safety = "exact"
value = "2"
arguments = [["--threads=2"]]
"""
PATCHES = [{"name": "dataloader", "parameters": {"num_workers": 4}}]
VARIABLES = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2", "NCCL_MIN_NCHANNELS": "8"}
SHOW = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], {n: v for n, v in os.environ.items()"
    " if n.startswith(('NCCL_', 'FLATOUT_', 'MINE'))}]))"
)


def run(tmp_path: Path, *arguments: str, tuned: str = TUNED) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tuned.toml").write_text(tuned)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "FLATOUT_"))}
    return subprocess.run(
        [sys.executable, "-m", "flatout", "run", "--config", "tuned.toml", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
        env={**inherited, "PYTHONPATH": str(Path(package.__file__).parents[1]), "MINE": "stays"},
    )


def test_a_dry_run_shows_what_would_be_started_and_starts_nothing(tmp_path: Path) -> None:
    program = "open('started', 'w')"
    done = run(tmp_path, "--dry-run", "--", sys.executable, "-c", program, "--threads=8", "a b")
    assert (done.returncode, done.stderr) == (0, "")
    found = shlex.split(done.stdout)
    split = found.index(sys.executable)
    assert found[split:] == [sys.executable, "-c", program, "--threads=2", "a b"]
    variables = dict(word.split("=", 1) for word in found[:split])
    assert json.loads(variables.pop("FLATOUT_PATCHES")) == PATCHES
    assert variables.pop("PYTHONPATH").split(":")[0].endswith("inside/startup"), "else the patches are not loaded"
    assert variables == VARIABLES
    assert not (tmp_path / "started").exists()


def test_variables_patches_and_arguments_reach_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, "--", sys.executable, "-c", SHOW, "--threads=8", "a b")
    assert done.returncode == 0, done.stderr
    said, told = done.stderr.splitlines()
    assert said == "flatout: with nccl-sockets=2x2+8, dataloader-workers=4, threads=2"
    assert told == "flatout: not applied on this host: dataloader: no training process reported it"
    arguments, variables = json.loads(done.stdout)
    assert arguments == ["--threads=2", "a b"]
    assert json.loads(variables["FLATOUT_PATCHES"]) == PATCHES
    assert variables.items() >= VARIABLES.items()
    assert variables["MINE"] == "stays"
    assert not any(name.startswith(("FLATOUT_STOP", "FLATOUT_DIVERT")) for name in variables)


@pytest.mark.parametrize(("script", "is_told"), [("train.py", False), ("other/train.py", False), ("eval.py", True)])
def test_another_script_than_the_tuned_one_is_told_as_its_arguments_are(
    tmp_path: Path, script: str, is_told: bool
) -> None:
    (tmp_path / script).parent.mkdir(exist_ok=True)
    (tmp_path / script).write_text("import sys; print(sys.argv[1:])")
    tuned = TUNED.replace("version = 1\n", 'version = 1\ncommand = ["python", "train.py", "--threads=1"]\n', 1)
    done = run(tmp_path, "--", sys.executable, script, tuned=tuned)
    assert (done.returncode, done.stdout) == (0, "['--threads=2']\n")
    told = "flatout: tuned on train.py; eval.py still gets its arguments --threads=2"
    assert (told in done.stderr.splitlines()) is is_told


def test_nothing_is_written_beside_the_command(tmp_path: Path) -> None:
    run(tmp_path, "--", sys.executable, "-c", "")
    assert [file.name for file in tmp_path.iterdir()] == ["tuned.toml"]


@pytest.mark.parametrize("code", [0, 3, 255])
def test_it_ends_with_the_commands_own_code(tmp_path: Path, code: int) -> None:
    assert run(tmp_path, "--", "sh", "-c", f"exit {code}").returncode == code


def test_it_ends_by_the_signal_that_ended_the_command(tmp_path: Path) -> None:
    assert run(tmp_path, "--", "sh", "-c", "kill -9 $$").returncode == -9


def test_a_file_without_changes_runs_the_command_as_it_is(tmp_path: Path) -> None:
    done = run(tmp_path, "--", sys.executable, "-c", SHOW, tuned='schema = "flatout/tuned"\nversion = 1\n')
    arguments, variables = json.loads(done.stdout)
    assert arguments == [] and "FLATOUT_PATCHES" not in variables
    assert done.stderr == "flatout: with no change\n"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("version = 1", "version = 9", "has version 9"),
        ('"8" }', '"8", NCCL_CHUNK_SIZE = "1" }', "may not set the variable NCCL_CHUNK_SIZE"),
        ('"8" }', '"8", LD_PRELOAD = "/tmp/theirs.so" }', "may not set the variable LD_PRELOAD"),
        ('name = "dataloader"', 'name = "os.system"', "there is no patch `os.system`"),
        ("num_workers = 4 }", "num_workers = 4000 }", "does not take num_workers = 4000"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_and_nothing_is_started(
    tmp_path: Path, old: str, new: str, what: str
) -> None:
    assert old in TUNED
    done = run(tmp_path, "--", "touch", "started", tuned=TUNED.replace(old, new))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: tuned.toml") and what in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_launcher_that_the_command_does_not_call_is_one_line(tmp_path: Path) -> None:
    tuned = (
        'schema = "flatout/tuned"\nversion = 1\n[[change]]\nname = "torchrun-numa-binding=node"\n'
        'knob = "torchrun-numa-binding"\nfamily = "process"\nsafety = "exact"\nvalue = "node"\n'
        'launch = { torchrun = ["--numa-binding=node"] }\n'
    )
    done = run(tmp_path, "--", sys.executable, "train.py", tuned=tuned)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a change adds --numa-binding=node to torchrun, which the command does not")
    shown = run(tmp_path, "--dry-run", "--", "torchrun", "train.py", tuned=tuned)
    assert shown.stdout == "torchrun --numa-binding=node train.py\n"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "--config", "nowhere.toml", "--", "true")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: nowhere.toml cannot be read: no such file or directory",
        "hint: pass a tuned.toml that `flatout tune` wrote",
    ]


def test_the_folder_of_a_trial_is_the_one_where_it_is_started(tmp_path: Path) -> None:
    done = run(tmp_path, "--", sys.executable, "-c", SHOW, "--out={trial_dir}/a")
    assert f"flatout: {{trial_dir}} is this folder: {tmp_path}" in done.stderr.splitlines()
    assert f"--out={tmp_path}/a" in json.loads(done.stdout)[0]
