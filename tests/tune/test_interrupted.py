"""A real tuning that is interrupted, and goes on: no finished trial is run again, and no process is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import flatout

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")
JOB = Path(__file__).with_name("resting.py")
NUM_TRIALS = 21
PATIENCE_S = 240.0


class Tuning:
    """`flatout tune` on a job of one process, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.out, self.runs = folder / "out", folder / "runs"
        self.runs.mkdir()
        self._hold = folder / "hold"
        self._log = folder / "log"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(Path(flatout.__file__).parents[1]),
            "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
            "FLATOUT_OVERLAY": "0",  # so that its trials start warm
            "RUNS": str(self.runs),
        }

    def start(self) -> subprocess.Popen[bytes]:
        options = ["--trials", str(NUM_TRIALS), "--steps", "6", "--warmup", "2", "--budget", "1h"]
        options += ["--knob", "pause/exact={0.01}:--pause={}"]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flatout", "tune", "--out", self.out, *options, "--", sys.executable, JOB],
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def num_runs(self) -> int:
        return len(list(self.runs.iterdir()))

    def lines(self, kind: str) -> list[dict[str, object]]:
        file = self.out / "journal.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in found if line["type"] == kind]

    def interrupt(self, number: int, when: Callable[[], bool]) -> int:
        """Start the tuning, send the signal as soon as a run has begun after `when`, and return the exit code.

        That run is held, so that it cannot end before the signal comes, however busy the machine is.
        """
        process = self.start()
        wait_for(when, process, self.text)
        before = self.num_runs()
        self._hold.touch()  # counted first: else a run could be held that nobody waits for
        wait_for(lambda: self.num_runs() > before, process, self.text)
        process.send_signal(number)
        code = process.wait(60)
        wait_for(lambda: not self.job_processes(), None, self.text)
        self._hold.unlink()
        return code

    def job_processes(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RUNS") == str(self.runs) and str(JOB) in process.cmdline():
                    found.append(process.pid)
            except (psutil.Error, OSError):
                continue
        return found


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes] | None, log: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, log()
        assert process is None or process.poll() is None, log()
        time.sleep(0.05)


def test_a_tuning_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """By Ctrl-C among the first trials, by a scheduler while it screens, and killed while it confirms."""
    tuning = Tuning(tmp_path)
    assert tuning.interrupt(signal.SIGINT, lambda: len(tuning.lines("trial")) >= 2) == 1, "the verdict so far"
    assert "to resume" in tuning.text()
    so_far = json.loads((tuning.out / "tuning.json").read_text())
    assert so_far["ended_by"] == "interrupted" and so_far["num_trials"] >= 2
    assert tuning.interrupt(signal.SIGTERM, lambda: "screening" in tuning.text()) == 143
    kept = tuning.lines("trial")
    assert tuning.interrupt(signal.SIGKILL, lambda: "confirming pause=0.01 " in tuning.text()) == -signal.SIGKILL
    num_before, num_runs = len(tuning.lines("trial")), tuning.num_runs()
    last = tuning.start()
    # Other tests beside this one may void so many pairs that no verdict is reached.
    assert last.wait(PATIENCE_S) in (0, 1), tuning.text()

    trials, profiles = tuning.lines("trial"), tuning.lines("profile")
    assert trials[: len(kept)] == kept
    assert len(profiles) == len({line["key"] for line in profiles})
    result = json.loads((tuning.out / "tuning.json").read_text())
    assert result["num_resumed"] == num_before
    assert len(trials) == result["num_trials"] <= NUM_TRIALS
    if last.returncode == 0:
        assert [change["name"] for change in result["changes"]] == ["pause=0.01"]
    # What ran is what is in the journal, and one run cut short by each interruption.
    assert tuning.num_runs() == len(trials) + len(profiles) + 3
    assert tuning.num_runs() - num_runs == len(trials) - num_before + (len(profiles) - 1)
    sessions = [line["result"]["session"] for line in trials]  # type: ignore[index]
    assert sessions == sorted(sessions) and len(set(sessions)) == 4
    assert not tuning.job_processes()


def test_what_a_killed_tuning_left_is_ended_before_another_trial(tmp_path: Path) -> None:
    """Even if nobody ended it then: a process that bears the name of a trial of this folder."""
    out = tmp_path / "out"
    stray = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "FLATOUT_RECORDING": str(out / "runs" / "trial-000" / "recording")},
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "tune", "--out", out, "--", sys.executable, "-c", "raise SystemExit(3)"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1])},
        )
        assert done.returncode == 2
        assert "ended 1 process left by an earlier tuning" in done.stderr
        assert stray.wait(30) == -signal.SIGTERM
    finally:
        stray.kill()
        stray.wait()
