"""The ledger as a file: only added to, true after a kill at any time, and its totals."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flatout as package
from flatout.errors import InputError, OutputError
from flatout.keep.ledger import HeldError, LedgerFile, read
from flatout.keep.ledger_merge import open_own, read_all
from flatout.keep.ledger_report import report
from flatout.secrets import masked_text

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).parents[1] / "jobs" / "keep_job.py"
SOURCE = str(Path(package.__file__).parents[1])


def write(path: Path, *seconds: dict[str, int]) -> None:
    writer = LedgerFile(path)
    writer.write("run", command="train", num_devices=2, gpu=None)
    for one in seconds:
        writer.write("seconds", attempt=0, num_devices=2, ns=one, steps=3)
    writer.close()


def test_totals_are_those_of_all_runs(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, {"productive": 6, "data": 2}, {"productive": 1})
    write(path, {"restart": 3})
    totals = read(path)
    assert (totals.num_runs, totals.num_steps, totals.num_unfinished) == (2, 9, 2)
    assert {name: value for name, value in totals.ns.items() if value} == {"productive": 7, "data": 2, "restart": 3}
    assert totals.goodput == 7 / 12


def test_a_line_that_was_cut_short_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, {"productive": 6}, {"productive": 100})
    os.truncate(path, path.stat().st_size - 9)
    write(path, {"productive": 1})
    totals = read(path)
    assert totals.ns["productive"] == 7 and totals.num_bad_lines == 1 and totals.num_runs == 2


@pytest.mark.parametrize(
    "values",
    [
        '"ns": {"data": 1e999}',
        '"ns": {"data": -5}',
        '"ns": {"data": 1' + "0" * 400 + "}",
        '"ns": {}, "num_devices": "two"',
        '"ns": {}, "known_ns": {"throttled": {"nvml": -1}}',
        '"ns": {}, "known_ns": {"throttled": 5}',
        '"ns": {}, "not_known": []',
    ],
)
def test_a_line_of_impossible_numbers_costs_that_line_only(tmp_path: Path, values: str) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, {"productive": 6})
    with path.open("a") as file:
        file.write(f'{{"event": "seconds", {values}}}\n')
    totals = read(path)
    assert (totals.allocated_ns, totals.num_devices, totals.num_bad_lines) == (6, 2, 1)


def test_cost_and_energy_are_shares_of_the_whole_and_unknown_without_a_price(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    hour = 3600 * 10**9
    write(path, {"productive": 3 * hour, "hang": hour})
    found = report(read(path), price_per_h=(2.5, "as given"), watts=(500.0, "as given"))
    assert (found.cost, found.energy_kwh, found.allocated_device_s, found.goodput) == (10.0, 2.0, 14400.0, 0.75)
    known = [one for one in found.classes if one.device_s is not None]
    assert sum(one.cost or 0 for one in known) == 10.0 and sum(one.share or 0 for one in known) == 1.0
    unknown = {one.name for one in found.classes if one.device_s is None}
    assert unknown == {"exposed_communication", "late_rank_wait", "throttled"}
    assert report(read(path)).cost is None and report(read(path)).energy_kwh is None


def test_nothing_is_added_to_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print(1)\n")
    with pytest.raises(OutputError, match="is not a ledger: nothing is added to it"):
        LedgerFile(path)
    assert path.read_text() == "print(1)\n"


@pytest.mark.parametrize("damage", [b"", b'{"schema":"fl', b"\0" * 100, b"\0\0{", b'{"event": "end"}\n'])
def test_a_ledger_that_was_damaged_is_added_to_all_the_same(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(damage)
    write(path, {"productive": 1})
    assert path.read_bytes().startswith(damage) and path.read_text().count('"productive":1') == 1


def test_the_share_is_unknown_where_of_no_time_is_known_what_it_was(tmp_path: Path) -> None:
    """As of a job without torch."""
    write(tmp_path / "ledger.jsonl", {"unknown": 5})
    assert read(tmp_path / "ledger.jsonl").goodput is None
    write(tmp_path / "ledger.jsonl", {"restart": 5})
    assert read(tmp_path / "ledger.jsonl").goodput == 0


def test_classes_within_steps_are_null_with_their_reason_until_they_were_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = LedgerFile(path)
    writer.write("run", command="train", num_devices=2, gpu=None)

    def seconds(**values: object) -> None:
        writer.write("seconds", attempt=0, num_devices=2, steps=3, **values)

    seconds(ns={"productive": 10}, steps_ns=10, known_ns={}, not_known={"throttled": "nobody looked"})
    found = {one.name: one for one in report(read(path)).classes}
    assert (found["throttled"].device_s, found["throttled"].reason) == (None, "nobody looked")
    seconds(ns={"productive": 20, "throttled": 10}, steps_ns=30, known_ns={"throttled": {"nvml": 30}}, not_known={})
    writer.close()
    found = {one.name: one for one in report(read(path)).classes}
    throttled = found["throttled"]
    assert (throttled.device_s, throttled.share, throttled.known_share) == (1e-8, 0.25, 0.75)
    assert (throttled.basis, throttled.reason) == (("nvml",), "nobody looked"), "why not in the other quarter"
    assert found["late_rank_wait"].device_s is None and found["productive"].known_share is None


@pytest.mark.parametrize(
    ("content", "what"), [("", "not a ledger"), ("{}\n", "not a ledger"), ("\x00\xff", "not a ledger")]
)
def test_another_file_is_an_error_of_one_line(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(InputError, match=what):
        read(path)
    with pytest.raises(InputError, match="gone cannot be read: no such file or directory") as raised:
        read(tmp_path / "gone")
    assert "flatout run --ledger" in raised.value.hint


def test_the_command_line_prints_text_and_json(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, {"productive": 3 * 10**9, "hang": 10**9})

    def ledger(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flatout", "ledger", str(path), *options],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )

    text = ledger("--gpu-price", "2", "--gpu-watts", "700")
    assert text.returncode == 0 and "75 % of it productive" in text.stdout and "700 W per device" in text.stdout
    found = json.loads(ledger("--json").stdout)
    assert found["schema"] == "flatout/ledger-report" and found["cost"] is None
    assert sum(one["device_s"] or 0 for one in found["classes"]) == found["allocated_device_s"] == 4.0
    for price in ("nan", "inf", "1e300"):
        bad = ledger("--gpu-price", price)
        assert bad.returncode == 2 and bad.stderr.startswith("error: `--gpu-price` must be a number from 0 to")
    bad = ledger("--gpu", "no such GPU")
    assert bad.returncode == 0 and "Cost" not in bad.stdout


def test_the_ledger_is_true_after_flatout_run_itself_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "flatout", "run", "--ledger", str(path), "--", *launcher),
            *(str(JOB), f"--out={tmp_path / 'out'}", "--steps=400"),
        ],
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    began = time.time()
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().count('"seconds"') >= 3) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()
    killed = time.time()
    os.killpg(process.pid, signal.SIGTERM)  # the job goes on without its keeper: end it
    totals = read(path)
    assert totals.num_unfinished == 1 and totals.num_bad_lines == 0
    assert totals.ns["productive"] > 0
    told_s = totals.allocated_ns / 1e9 / 2
    assert killed - began - 4 < told_s <= killed - began, "up to what was last written, and no more"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("sh -c 'WANDB_API_KEY=abc train --password hunter2'", "sh -c 'WANDB_API_KEY=*** train --password ***'"),
        ('MY_TOKEN="a b" x', 'MY_TOKEN="***" x'),
        ("--eos-token=9 --lr 3 --seed=4 -p --keep x", "--eos-token=9 --lr 3 --seed=4 -p --keep x"),
    ],
)
def test_secrets_within_a_command_are_masked(text: str, masked: str) -> None:
    assert masked_text(text) == masked


def test_tokens_and_hosts_are_masked_in_whatever_is_written(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, torch\n"
        "raise OSError(f'GET https://me:{os.environ[\"MY_PASSWORD\"]}@hub/x: bearer abcdef hf_abcdefghijklmnop on '"
        " + os.uname().nodename)\n"
    )
    words = [sys.executable, "-m", "flatout", "run", "--redact", "--ledger", "l.jsonl", "--max-restarts=1", "--"]
    done = subprocess.run(
        [*words, sys.executable, str(program), "--api-key", "sesame"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE, "MY_PASSWORD": "open-sesame"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    told = "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("flatout: "))
    written = (tmp_path / "l.jsonl").read_text()
    for text in (told, written):
        assert "OSError at train.py:2" in text
        assert "sesame" not in text and "hf_abc" not in text and "abcdef" not in text
        assert f" {os.uname().nodename} " not in text and "host-1" in text
    assert all(json.loads(line) for line in written.splitlines())


def test_a_class_known_in_part_says_why_not_in_all_and_a_ledger_without_steps_gives_no_reason(tmp_path: Path) -> None:
    """Two steps before DDP's first timed exchange, in a line by whose end there was one, then others after it."""
    trained, failed = tmp_path / "trained.jsonl", tmp_path / "failed.jsonl"
    writer = LedgerFile(trained)
    writer.write("run", command="train", num_devices=1, gpu=None, node="n1")
    times: list[tuple[int, int, dict[str, str]]] = [(10, 6, {"throttled": "No rank uses a GPU"}), (30, 30, {})]
    for ns, known, why in times:
        known_ns = {"exposed_communication": {"ddp": known}}
        values = {"ns": {"productive": ns}, "steps": 1, "steps_ns": ns, "known_ns": known_ns, "not_known": why}
        writer.write("seconds", attempt=0, num_devices=1, **values)
    writer.close()
    write(failed, {"unknown": 5})
    for paths in ([trained], [trained, failed], [failed, trained]):
        totals = read_all(paths)
        assert totals.known_share("exposed_communication") == 36 / 40
        assert totals.not_known["exposed_communication"] == "Unknown before DDP's first timed exchange"
        assert totals.not_known["throttled"] == "No rank uses a GPU"
    assert read_all([failed]).not_known["exposed_communication"] == "No step was seen in which it could be measured"


def test_the_first_damaged_line_is_named_with_its_field(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, {"productive": 6})
    num_lines = len(path.read_text().splitlines())
    with path.open("a") as file:
        file.write(
            '{"event":"seconds","ns":{"data":"x"}}\n{"event":"failure","step":[]}\n{"event":"later"}\n' + "[" * 5000
        )
    totals = read(path)
    assert totals.num_bad_lines == 3
    assert totals.first_bad_line == f"ledger.jsonl, line {num_lines + 1}: Expected `int`, got `str` - at `$.ns[...]`"


def _no_locks(file: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_on_a_file_system_without_locks_a_second_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.keep.ledger.fcntl.flock", _no_locks)
    path = tmp_path / "ledger.jsonl"
    first = LedgerFile(path)
    first.write("run", command="train", num_devices=2, gpu=None)
    with pytest.raises(HeldError):
        LedgerFile(path)
    LedgerFile(tmp_path / "other.jsonl").close()
    first.close()
    LedgerFile(path).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ledger.jsonl", "other.jsonl"]


def test_without_locks_each_run_in_a_folder_has_its_own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.keep.ledger.fcntl.flock", _no_locks)
    first, first_name = open_own(tmp_path, "n1")
    second, second_name = open_own(tmp_path, "n1")
    assert (first_name, second_name) == ("n1", "n1+2")
    first.close()
    second.close()


def test_without_locks_a_ledger_whose_run_was_killed_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    script = (
        "import fcntl, os, pathlib, signal, sys\n"
        "def no_locks(file, operation): raise OSError(37, 'no locks')\n"
        "fcntl.flock = no_locks\n"
        "from flatout.keep.ledger import LedgerFile\n"
        f"ledger = LedgerFile(pathlib.Path({str(path)!r}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / ".ledger.jsonl.lock").exists()
    monkeypatch.setattr("flatout.keep.ledger.fcntl.flock", _no_locks)
    LedgerFile(path).close()
