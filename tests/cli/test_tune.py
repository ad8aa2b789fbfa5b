"""`flatout tune` as a user runs it: what is refused before anything is started, and commands that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import typer
from tests.report import tuning_builder as builder
from tests.verdict.trials import trial

import flatout as package
from flatout.cli.durations import Duration
from flatout.cli.tune import tune
from flatout.errors import OutputError
from flatout.records.tuning import TuneResult
from flatout.trial.journal import Heading, Journal
from flatout.tune.files import history_path, learn

pytestmark = pytest.mark.usefixtures("warm")


def flatout(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
    )


# In the folder of the tuning, which is the only one in which a trial leaves a file.
MARK = "import pathlib; pathlib.Path('out/started').touch()"
ONE_STEP = """
import torch
model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "soon"], "`--budget` must be a duration from 1s to 30d, e.g. 90s, 10m or 36h, but is `soon`"),
        (["--budget", ""], "`--budget` must be a duration from 1s to 30d"),
        (["--budget", "-5m"], "`--budget` must be a duration from 1s to 30d"),
        (["--budget", "0"], "`--budget` must be a duration from 1s to 30d"),
        (["--budget", "31x"], "`--budget` must be a duration from 1s to 30d"),
        (["--budget", "721h"], "`--budget` must be a duration from 1s to 30d"),
        (["--budget", f"{'9' * 400}s"], "`--budget` must be a duration from 1s to 30d"),
        (["--allow", "all"], "`--allow` must be one of exact, rounding, semantic, but got all"),
        (["--objective", "loss"], "`--objective` must be one of samples/s, tokens/s, steps/s, memory, energy, but"),
        (["--knob", "batch"], "--knob 'batch' must have the form NAME={VALUE,VALUE,...}:ARGUMENT={}"),
        (["--knob", "batch={8,8}:--batch={}"], "--knob 'batch={8,8}:--batch={}' has the same value twice"),
        (["--knob", "batch={8}:--batch={}"], "the knob `batch` is semantic"),
        (
            ["--knob", "a/exact={8}:--batch={}", "--knob", "a/exact={9}:--other={}"],
            "each `--knob` must have a unique name, but got `a` twice",
        ),
        (
            ["--knob", "a/exact={8}:--batch={}", "--knob", "b/exact={9}:--batch {}"],
            "an argument can be in only one `--knob`, but got --batch in `a` and `b`",
        ),
    ],
)
def test_arguments_that_are_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = flatout("tune", "--out", "out", *arguments, "--", sys.executable, "-c", MARK, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}") and "internal" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, force: list[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    done = flatout("tune", "--out", out, *force, "--", sys.executable, "-c", MARK, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {out} already has other files",
        "hint: pass another --out",
    ]
    assert [file.name for file in out.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "out" / "started").exists()


def test_a_finished_tuning_is_not_replaced_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    Journal(out / "journal.jsonl", Heading(tool_version="1", command=("python", "other.py"), options={}))
    (out / "tuning.json").write_text("{}\n")
    done = flatout("tune", "--out", out, "--", sys.executable, "-c", MARK, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {out} already has a finished tuning")
    assert (out / "tuning.json").read_text() == "{}\n"


def test_the_tuning_of_another_command_is_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    heading = Heading(tool_version="1", command=("python", "other.py"), options={})
    Journal(out / "journal.jsonl", heading).add("a", trial(0))
    before = (out / "journal.jsonl").read_bytes()
    done = flatout("tune", "--out", "out", "--", sys.executable, "-c", MARK, cwd=tmp_path)
    assert done.returncode == 2
    assert "is the journal of another tuning" in done.stderr
    assert (out / "journal.jsonl").read_bytes() == before
    assert not (tmp_path / "out" / "started").exists()


def test_a_tuning_of_a_command_with_a_typo_gives_way_to_the_right_one(tmp_path: Path) -> None:
    """The same --out, and no --force: nothing was measured there. What else lies there stays."""
    first = flatout("tune", "--out", "out", "--", sys.executable, "trian.py", cwd=tmp_path)
    assert first.returncode == 2 and "the unchanged command fails" in first.stderr
    (tmp_path / "out" / "notes.txt").write_text("mine")
    done = flatout("tune", "--out", "out", "--", sys.executable, "-c", MARK, cwd=tmp_path)
    assert f"flatout: {tmp_path / 'out'} held another tuning, none of whose trials succeeded" in done.stderr
    assert (tmp_path / "out" / "started").exists()
    assert "no training step was seen in it" in done.stderr  # of the command that runs now
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    headings = [line for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines() if "heading" in line]
    assert len(headings) == 1 and "pathlib" in headings[0]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("raise ValueError('bad sample')", "exit code 1: rank 0: ValueError: bad sample"),
        ("raise SystemExit(7)", "exit code 7: it printed nothing"),
        ("import os; os.kill(os.getpid(), 9)", "ended by a signal: it printed nothing"),
        (
            "print('done')",
            "no training step was seen in it (the recorder was loaded into 1 Python process, but none imported torch)",
        ),
        ("import torch", "no training step was seen in it (1 process imported torch, but none made an optimizer step"),
        (ONE_STEP, "it made 0 steps after the warm-up, but at least 3 are needed (the job ended after 1 step, before"),
    ],
)
def test_a_command_that_does_not_train_is_one_line_and_where_its_output_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    monkeypatch.setenv("FLATOUT_OVERLAY", "0")  # so that it starts warm, and only once
    done = flatout("tune", "--out", "out", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()[-2:]
    says = (
        "the command ended too early to be tuned"
        if "steps after the warm-up" in problem
        else "the unchanged command fails"
    )
    says = "the command cannot be tuned" if "no training step" in problem else says
    assert ("let it run for more steps" in hint) == ("steps after the warm-up" in problem)
    assert error.startswith(f"error: {says}: {problem}")
    output = Path(hint.partition("its output is in ")[2])
    assert output == tmp_path / "out" / "runs" / "trial-000" / "output.log" and output.is_file()
    assert "Traceback" not in done.stderr


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = flatout("tune", "--out", "out", "--", "no-such-command", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: the command `no-such-command` was not found" in done.stderr


def test_a_folder_in_which_a_tuning_is_at_work_is_left_alone(tmp_path: Path) -> None:
    """With --force, too: it would delete what the other one writes."""
    out = tmp_path / "out"
    program = "import pathlib, time; pathlib.Path('out/started').touch(); time.sleep(600)"
    first = subprocess.Popen(
        [sys.executable, "-m", "flatout", "tune", "--out", out, "--", sys.executable, "-c", program],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / "started").exists():
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.05)
        before = (out / "journal.jsonl").read_bytes()
        for force in ([], ["--force"]):
            done = flatout("tune", "--out", "out", *force, "--", sys.executable, "-c", program, cwd=tmp_path)
            assert done.returncode == 2
            assert done.stderr.startswith(f"error: another tuning is running in {out}\n")
        assert (out / "journal.jsonl").read_bytes() == before and first.poll() is None
    finally:
        first.terminate()
        assert first.wait(60) == 143


NFS = """
import errno, fcntl, os, stat, sys
real = fcntl.flock
def flock(file, operation):
    number = file if isinstance(file, int) else file.fileno()
    if stat.S_ISDIR(os.fstat(number).st_mode):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return real(file, operation)
fcntl.flock = flock
if HOST:
    names = os.uname()
    os.uname = lambda: os.uname_result((names[0], HOST, *names[2:]))
import flatout.checkpoint.lock as lock
lock.Lock.__init__.__defaults__ = (WATCH_S,)
from flatout.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(("host", "watch_s"), [("", 0.1), ("another-node", 8.0)])
def test_a_folder_without_locks_as_on_nfs_is_left_alone_too(tmp_path: Path, host: str, watch_s: float) -> None:
    """On one host, and from another, which sees the owner renew its lock every three seconds."""
    program = "import pathlib, time; pathlib.Path('out/started').touch(); time.sleep(600)"
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}

    def tuning(host: str, *options: str) -> list[str]:
        flatout_on_nfs = NFS.replace("HOST", repr(host)).replace("WATCH_S", repr(watch_s))
        command = [sys.executable, "-c", program]
        return [sys.executable, "-c", flatout_on_nfs, "tune", "--out", "out", *options, "--", *command]

    first = subprocess.Popen(tuning(""), cwd=tmp_path, stderr=subprocess.DEVNULL, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / "started").exists():
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.05)
        before = (tmp_path / "out" / "journal.jsonl").read_bytes()
        refused = subprocess.run(
            tuning(host, "--force"), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: another tuning is running in {tmp_path}/out: ")
        assert f"process {first.pid} on {os.uname().nodename}" in refused.stderr
        assert (tmp_path / "out" / "journal.jsonl").read_bytes() == before and first.poll() is None
    finally:
        first.terminate()
        assert first.wait(60) == 143
    assert not (tmp_path / "out" / "lock.json").exists()


@pytest.mark.parametrize("no_history", [False, True])
def test_the_history_is_used_and_added_to_unless_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_history: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = history_path(os.environ)
    learn(builder.better(), file)
    before = file.read_text()
    given: list[object] = []

    def tuned(runner: object, options: object, say: object, calibration: object, *_: object) -> TuneResult:
        given.append(calibration)
        better = builder.better()
        return msgspec.structs.replace(better, tuning=msgspec.structs.replace(better.tuning, date="2027-01-01"))

    monkeypatch.setattr("flatout.tune.loop.tune", tuned)
    with pytest.raises(typer.Exit):
        tune(["python", "train.py"], out=tmp_path / "out", budget=Duration("60s", 60.0), no_history=no_history)
    assert (given == [None]) == no_history
    assert (file.read_text() == before) == no_history
    next_one = json.loads((tmp_path / "out" / "journal.jsonl").read_text().splitlines()[0])["options"]
    assert next_one["uses_history"] == str(not no_history)


def test_a_result_that_cannot_be_written_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("flatout.tune.loop.tune", lambda *_: builder.better())
    (tmp_path / "out" / "report.html").mkdir(parents=True)  # in its way
    monkeypatch.setattr("flatout.tune.files.RESULTS", ())
    (tmp_path / "out" / "journal.jsonl").touch()
    with pytest.raises(OutputError, match=r"report\.html") as error:
        tune(["python", "train.py"], out=tmp_path / "out", budget=Duration("60s", 60.0))
    assert "run the command again with this --out" in (error.value.hint or "")
    assert capsys.readouterr().out.startswith("3.21x faster")
    assert not history_path(os.environ).exists()  # or it would be learned twice
