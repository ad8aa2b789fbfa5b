"""How often to save: assumed before there is a measurement, told as such, and chosen anew between attempts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from math import sqrt
from pathlib import Path

import pytest

import flatout as package
from flatout.change.launchers import launch_value
from flatout.keep.hosts import num_nodes
from flatout.keep.interval_choice import choose
from flatout.keep.ledger import LedgerFile, read
from flatout.keep.ledger_report import report

pytestmark = pytest.mark.usefixtures("warm")

SOURCE = str(Path(package.__file__).parents[1])
EVERY_S = "FLATOUT_CHECKPOINT_EVERY_S"
DAY_NS = 86_400 * 10**9


def measured(folder: Path, stall_s: float, write_s: float, count: int = 5) -> None:
    folder.mkdir(exist_ok=True)
    line = {"step": 1, "outcome": "committed", "bytes": 9, "stall_s": stall_s, "until_committed_s": write_s}
    (folder / "checkpoints.jsonl").write_text(count * (json.dumps(line) + "\n"))


def ledger(path: Path, ns: Mapping[str, int], *faults: str, hangs: int = 0) -> Path:
    writer = LedgerFile(path)
    writer.write("run", num_devices=8, gpu=None)
    writer.write("attempt", attempt=0)
    for fault in faults:
        writer.write("failure", fault=fault, says="it failed")
        writer.write("attempt", attempt=1)
    for _ in range(hangs):
        writer.write("hang", says="it hung")
    writer.write("seconds", num_devices=8, ns=ns, steps=1)
    writer.close()
    return path


def test_what_was_not_measured_is_assumed_and_said_to_be(tmp_path: Path) -> None:
    saving = choose(tmp_path / "none", read(ledger(tmp_path / "l", {})), num_nodes=1)
    assert saving.num_checkpoints == 0 and set(saving.assumed) == {"stall_s", "write_s", "detect_s", "restart_s"}
    assert "is assumed to cost" in saving.describe() and "0 observed and a published rate" in saving.describe()
    assert saving.every_s == saving.low_s < saving.high_s  # often, until one was measured


def test_the_interval_is_that_of_the_measured_cost_and_of_the_failures_seen(tmp_path: Path) -> None:
    """40 failures in 20 days on 4 nodes outweigh the prior; Young's formula is near for so cheap a checkpoint."""
    measured(tmp_path, stall_s=3.0, write_s=3.0)
    path = ledger(tmp_path / "l", {"productive": 8 * 20 * DAY_NS}, *["machine"] * 40)
    saving = choose(tmp_path, read(path), num_nodes=4)
    assert (saving.stall_s, saving.num_failures) == (3.0, 40)
    assert saving.failures / saving.node_days == pytest.approx(42 / (80 + 2000 / 6.5))
    days_between = (80 + 2000 / 6.5) / 42 / 4
    assert saving.every_s == pytest.approx(sqrt(2 * 3.0 * days_between * 86_400), rel=0.05)


def test_a_failure_of_the_jobs_own_says_nothing_of_the_machines_and_a_hang_may(tmp_path: Path) -> None:
    path = ledger(tmp_path / "l", {"productive": 1, "hang": 8 * 7 * 10**9}, "user", "unknown", "network", hangs=1)
    saving = choose(tmp_path, read(path), num_nodes=1)
    assert saving.num_failures == 3 and saving.detect_s == pytest.approx(7.0) and "detect_s" not in saving.assumed


def test_damaged_lines_of_checkpoints_are_passed_over(tmp_path: Path) -> None:
    measured(tmp_path, stall_s=2.0, write_s=4.0, count=1)
    with (tmp_path / "checkpoints.jsonl").open("ab") as file:
        for line in (b"\xff\n", b"[]\n", b'{"outcome": "committed"}\n', b'{"outcome": "committed", "stall_s": NaN, '):
            file.write(line)
        file.write(b'\n{"outcome": "committed", "stall_s": "9", "until_committed_s": 1}\n{"outcome": "failed"}\n')
    saving = choose(tmp_path, read(ledger(tmp_path / "l", {})), num_nodes=1)
    assert (saving.num_checkpoints, saving.stall_s, saving.write_s) == (1, 2.0, 4.0)


def test_the_ledger_says_what_to_attack_first_in_device_hours_and_money(tmp_path: Path) -> None:
    """A job that writes for ten minutes at each checkpoint and is back in a second has to attack the write time."""
    measured(tmp_path, stall_s=600.0, write_s=600.0)
    path = ledger(tmp_path / "l", {"productive": 8 * DAY_NS, "restart": 8 * 10**9}, "machine")
    totals = read(path)
    assert report(totals).levers == ()  # nothing was asked for
    from msgspec import to_builtins

    writer = LedgerFile(path)
    writer.write("saving", **to_builtins(choose(tmp_path, totals, num_nodes=16)))
    writer.close()
    found = report(read(path), price_per_h=(2.5, "as given")).levers
    assert {one.name for one in found} == {"write time", "restart time", "detection time", "failure rate"}
    gains = {one.name: one for one in found}
    assert found[0].gain_device_h > 100 * gains["restart time"].gain_device_h > 0
    assert gains["write time"].gain_cost == pytest.approx(2.5 * gains["write time"].gain_device_h)
    assert gains["detection time"].is_assumed and not gains["write time"].is_assumed
    said = subprocess.run(
        [sys.executable, "-m", "flatout", "ledger", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    ).stdout
    assert "Device time saved in 30 days by halving each" in said
    with path.open("a") as file:
        file.write('{"event": "saving", "every_s": "soon"}\n{"event": "saving", "num_nodes": 0}\n')
    assert report(read(path)).levers == ()  # a damaged line is no number


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python", "train.py", "--nodes=4"], 1),
        (["torchrun", "--nnodes=2:4", "train.py"], 4),
        (["torchrun", "--nnodes", "3", "train.py"], 3),
        (["srun", "-N2", "torchrun", "--nnodes=5", "train.py"], 2),
        (["srun", "python", "train.py"], 6),
    ],
)
def test_how_many_nodes_the_launcher_was_told(words: list[str], expected: int) -> None:
    environment = {"SLURM_JOB_NUM_NODES": "6"}
    assert num_nodes(words, launch_value(words, "torchrun", "--nnodes", environment), environment) == expected


def kept(tmp_path: Path, script: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    options = ["--max-restarts=1", "--checkpoint-folder=ckpt", *more]
    return subprocess.run(
        [sys.executable, "-m", "flatout", "run", *options, "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": SOURCE, **variables},
    )


SCRIPT = f"""echo "${EVERY_S}"; test -d ckpt && exit 0; mkdir ckpt
echo '{{"outcome": "committed", "stall_s": 60, "until_committed_s": 90}}' > ckpt/checkpoints.jsonl; kill -9 $$"""


def test_what_the_first_attempt_measured_is_the_interval_of_the_second(tmp_path: Path) -> None:
    done = kept(tmp_path, SCRIPT)
    assert done.returncode == 0
    first, second = map(float, done.stdout.split())
    assert second > 2 * first > 0
    told = [line for line in done.stderr.splitlines() if line.startswith("flatout: a checkpoint every ")]
    assert len(told) == 2 and "assumed to cost" in told[0] and "(measured, 1)" in told[1]
    assert done.stderr.splitlines()[-1].startswith("flatout: Device time saved in 30 days")


def test_the_users_own_interval_stays(tmp_path: Path) -> None:
    done = kept(tmp_path, SCRIPT, **{EVERY_S: "77"})
    assert done.stdout.split() == ["77", "77"] and f"flatout: a checkpoint every 77 s, from {EVERY_S}" in done.stderr


def test_a_ledger_that_cannot_be_read_back_does_not_keep_the_job_from_running(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_text('{"event": "run"}\n')
    for ledger in ("/dev/null", "garbage"):
        done = kept(tmp_path, "echo ran", f"--ledger={ledger}")
        assert (done.returncode, done.stdout) == (0, "ran\n") and "Traceback" not in done.stderr
