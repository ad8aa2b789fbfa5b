"""A tuning that its budget ended goes on with a larger one: from its journal, and with its pairs as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tune.simulated import BUCKET, COMMUNICATION, SOCKETS, WORKERS, SimulatedRunner, tuned

import flatout
from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult
from flatout.records.tuning import TuneResult
from flatout.trial.journal import Heading, Journal
from flatout.tune.trial_keys import trial_key

pytestmark = pytest.mark.usefixtures("warm")

HEADING = Heading(tool_version="1", command=("train",), options={})


class JournalledRunner(SimulatedRunner):
    """Gives back what the journal has, as `Runner` does. Each session is 15 % slower than the one before."""

    def __init__(self, file: Path, speedups: dict[str, float], seed: int, **others: Any) -> None:
        self.journal = Journal(file, HEADING)
        self.num_new = 0
        slower = 1.15**self.journal.session
        super().__init__(
            speedups,
            seed=seed + 100 * self.journal.session,
            ends=lambda index, changes: {"session": self.journal.session},
            **others,
        )
        self._slower = slower

    def trial(self, changes: ChangeSet, num_steps: int, place: str = "", *, other_samples: bool = False) -> TrialResult:
        key = trial_key(changes, num_steps)
        found = self.journal.recall(key, place)
        if found is not None:
            index, self.num_trials = self.num_trials, self.num_trials + 1
            self.num_resumed += 1
            found = msgspec.structs.replace(found, index=index)
            took_s = self._start_s + sum(found.step_s)
            self.usual_s = took_s if self.usual_s is None else self.usual_s
            self.now_s += took_s
            self.made.append((changes.name, found))
            return found
        made = super().trial(changes, num_steps)
        self.num_new += 1
        made = msgspec.structs.replace(made, step_s=tuple(step * self._slower for step in made.step_s))
        self.journal.add(key, made, place)
        return made


def run(file: Path, seed: int, **options: object) -> tuple[TuneResult, JournalledRunner]:
    runner = JournalledRunner(file, {SOCKETS: 1.5, WORKERS: 1.2, BUCKET: 0.9}, seed)
    return tuned(runner, **options), runner


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [4, 5, 6, 7])
def test_it_makes_no_trial_again_and_compares_none_across_the_interruption(
    tmp_path: Path, seed: int, most: int
) -> None:
    """The machine is 15 % slower by then: what is old must not be held against what is new."""
    first, before = run(tmp_path / "journal", seed, max_trials=most)
    assert first.is_cut_short and before.num_new == first.num_trials
    second, after = run(tmp_path / "journal", seed, max_trials=400)
    assert not second.is_cut_short
    assert after.num_resumed == first.num_trials
    assert after.num_resumed + after.num_new == second.num_trials
    verdict = second.tuning.verdict
    assert verdict is not None and verdict.verdict == "better" and verdict.num_void == 0
    assert verdict.speedup == pytest.approx(1.8, rel=0.06)


class InterruptedRunner(JournalledRunner):
    """By Ctrl-C in its first session, after that many trials."""

    most = 6

    def trial(self, changes: ChangeSet, num_steps: int, place: str = "", *, other_samples: bool = False) -> TrialResult:
        if self.journal.session == 0 and self.num_trials == self.most:
            raise KeyboardInterrupt
        return super().trial(changes, num_steps, place)


@pytest.mark.usefixtures("nothing_outstanding")
def test_of_a_journal_with_more_candidates_in_a_round_new_ones_are_held_against_baselines_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has baselines left when the old candidates are through, of a machine that was 15 % faster."""
    late, speedups = "nccl-sockets=1x1+16", {SOCKETS: 2.5, "nccl-sockets=1x1+16": 2.0}
    with monkeypatch.context() as patch:
        patch.setattr("flatout.tune.screening._outdone_by", lambda *_: None)  # none gave way to another one
        first = tuned(InterruptedRunner(tmp_path / "journal", speedups, 0, costs=COMMUNICATION), max_screened=4)
    assert first.end.ended_by == "interrupted" and first.num_trials == 6
    runner = InterruptedRunner(tmp_path / "journal", speedups, 0, costs=COMMUNICATION)
    result = tuned(runner, max_screened=10, max_rounds=1)
    assert result.num_resumed >= 4 and runner.names().count(late) == 1
    (told,) = (one for one in result.tried if one.name == late)
    assert told.screened == pytest.approx(2.0, rel=0.06)


KNOB = "p/exact={0.03,0.031}:--pause={}"


def test_a_real_tuning_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    (tmp_path / "runs").mkdir()

    def flatout_tune(*options: str) -> subprocess.CompletedProcess[str]:
        job = Path(__file__).with_name("resting.py")
        words = ["tune", "--out", str(out), "--steps", "5", "--warmup", "1", "--budget", "1h", *options]
        return subprocess.run(
            [sys.executable, "-m", "flatout", *words, "--knob", KNOB, "--", sys.executable, job],
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(flatout.__file__).parents[1]),
                "XDG_STATE_HOME": str(tmp_path / "state"),
                "OMP_NUM_THREADS": "1",
                "FLATOUT_OVERLAY": "0",  # so that its trials start warm
                "RUNS": str(tmp_path / "runs"),
            },
        )

    def trials() -> list[str]:
        return [line for line in (out / "journal.jsonl").read_text().splitlines() if '"type":"trial"' in line]

    done = flatout_tune("--trials", "4")
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.replace("\\\n", " ").split())
    assert (
        f"flatout tune --out {out} --budget 120m --trials 8 --knob 'p/exact={{0.03,0.031}}:--pause={{}}' --steps 5"
        in said
    )
    report = json.loads((out / "tuning.json").read_text())
    assert (report["is_cut_short"], report["max_trials"], report["num_trials"]) == (True, 4, 4)
    kept = trials()
    assert len(kept) == 4

    again = flatout_tune("--trials", "4")
    assert again.returncode == 2 and "and decrease neither" in again.stderr
    assert trials() == kept

    done = flatout_tune("--trials", "7")
    assert done.returncode in (0, 1), done.stderr  # the three further trials may show the gain
    former, report = report, json.loads((out / "tuning.json").read_text())
    # The second value has its trial now, whether or not more trials of the first could show anything.
    assert (report["num_resumed"], report["max_trials"]) == (4, 7)
    assert 4 < report["num_trials"] <= 7
    assert report["date"] == former["date"] and report["took_s"] > former["took_s"]
    assert trials()[:4] == kept and len(trials()) == report["num_trials"]
