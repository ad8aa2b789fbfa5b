"""When an overlay is given up, what makes a trial invalid, and how the tuning then stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tune.simulated import SimulatedRunner
from tests.tune.test_runner import HEADING, NOTHING, Job, change, job

from flatout.errors import FlatoutError, InvalidTrialError
from flatout.records.trial import TrialResult
from flatout.records.tuning import Separation
from flatout.trial.journal import Journal
from flatout.tune.options import TuneOptions
from flatout.tune.progress import Applied, Progress, Setup, StoppedError
from flatout.tune.rounds import plan_round
from flatout.tune.runner import Runner

__all__ = ["job"]  # a fixture
COMMAND = ("sh", "train.sh")


def overlaid(tmp_path: Path, said: list[str] | None = None) -> Runner:
    (tmp_path / "work").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    return Runner(
        COMMAND,
        out,
        Journal(out / "journal.jsonl", HEADING),
        shown_command=COMMAND,
        budget_s=3600.0,
        say=(said if said is not None else []).append,
        separation=Separation(method="overlay", folders=(str(tmp_path / "work"),)),
    )


def reports(kind: str, path: str = "/data/h.pt", **more: str) -> Callable[[Path], None]:
    """Write what a process of the trial reports."""

    def during(recording: Path) -> None:
        line = {"path": path, "kind": kind, "existed": True, **more}
        (recording / "diverted-host-1.jsonl").write_text(json.dumps(line) + "\n")

    return during


def test_the_command_is_started_in_the_overlay_with_a_layer_for_each_trial(job: Job, tmp_path: Path) -> None:
    runner = overlaid(tmp_path)
    for _ in range(2):
        runner.trial(NOTHING, 20)
    first, second = job.commands
    assert first[-3:] == second[-3:] == ("--", *COMMAND)
    layers = [json.loads(words[4])["folders"][0]["upper"] for words in job.commands]
    assert layers == [str(tmp_path / f"out/runs/trial-00{index}/layers/0/upper") for index in range(2)]
    assert runner.separation.method == "overlay"


def test_a_first_trial_that_fails_in_the_overlay_runs_again_without(job: Job, tmp_path: Path) -> None:
    said: list[str] = []
    runner = overlaid(tmp_path, said)
    job.code = 1

    job.prints = "PermissionError: chown"
    original, codes = job.record, [1, 0]

    def record(*words: Any, **values: Any) -> Any:
        job.code = codes.pop(0)
        return original(*words, **values)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flatout.tune.recorded_runs.record", record)
        result = runner.trial(NOTHING, 20)
    assert result.is_complete and job.commands[1] == COMMAND
    assert runner.separation.method == "hooks"
    assert runner.separation.reason == "the job failed in one: exit code 1: PermissionError: chown"
    assert said[0] == "trial 0 failed with its files in an overlay; running it again without one"


def test_a_later_trial_that_fails_is_the_fault_of_its_change(job: Job, tmp_path: Path) -> None:
    runner = overlaid(tmp_path)
    assert runner.trial(NOTHING, 20).is_complete
    job.code = 1
    assert runner.trial(change("a"), 20).outcome == "failed"
    assert len(job.commands) == 2 and runner.separation.method == "overlay"


@pytest.mark.parametrize("how", ["outside", "refused"])
def test_a_trial_that_the_overlay_did_not_hold_is_repeated_with_hooks(job: Job, tmp_path: Path, how: str) -> None:
    said: list[str] = []
    runner = overlaid(tmp_path, said)

    def refused(recording: Path) -> None:
        if len(job.commands) == 1:
            (recording.parent / "refusal").write_text("the kernel refuses user namespaces: no space left on device")

    def outside(recording: Path) -> None:
        if len(job.commands) == 1:
            reports("outside", str(tmp_path / "work"))(recording)

    job.during = refused if how == "refused" else outside
    assert runner.trial(NOTHING, 20).is_complete
    why = {
        "outside": "processes of the job are outside the overlay",
        "refused": "the kernel refuses user namespaces: no space left on device",
    }[how]
    assert runner.separation == Separation(folders=(str(tmp_path / "work"),), reason=why)
    assert said[0] == f"repeating trial-000 without an overlay: {why}"
    assert job.commands[1] == COMMAND


def test_a_trial_that_read_what_an_earlier_one_wrote_is_invalid_and_stops_the_tuning(job: Job, tmp_path: Path) -> None:
    runner = overlaid(tmp_path)
    assert runner.trial(NOTHING, 20).is_complete
    job.during = reports("read_earlier", writer="trial 0")
    with pytest.raises(InvalidTrialError) as error:
        runner.trial(NOTHING, 20)
    assert str(error.value) == (
        "trial 1 is invalid, and the tuning stops: it read /data/h.pt, which trial 0 may have written: it"
        " changed during that trial"
    )
    assert "{trial_dir}" in error.value.hint and error.value.exit_code == 2
    last = json.loads((tmp_path / "out" / "journal.jsonl").read_text().splitlines()[-1])["result"]
    assert (last["outcome"], last["cause"]) == ("failed", "read_earlier")


def test_a_profile_that_read_what_an_earlier_trial_wrote_stops_the_tuning_too(job: Job, tmp_path: Path) -> None:
    runner = overlaid(tmp_path)
    job.during = reports("read_earlier")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flatout.tune.runner.read_profile", lambda folder, **_: None)
        with pytest.raises(InvalidTrialError, match=r"profile is invalid.*has changed since the tuning began"):
            runner.profile(NOTHING)


@pytest.mark.parametrize("error", [InvalidTrialError("it read h.pt"), FlatoutError("it could not be traced")])
def test_an_invalid_profile_of_the_applied_changes_is_no_profile_that_fails(error: FlatoutError) -> None:
    runner = SimulatedRunner({})

    def profile(changes: object, counted: object = None) -> TrialResult:
        raise error

    runner.profile = profile  # type: ignore[method-assign, assignment]
    setup = Setup(runner=runner, options=TuneOptions(), say=lambda line: None)  # type: ignore[arg-type]
    progress = Progress(objective="step_s", num_steps=20, applied=Applied(changes=change("a")))
    if isinstance(error, InvalidTrialError):
        with pytest.raises(InvalidTrialError):
            plan_round(setup, progress, 1)
    else:
        with pytest.raises(StoppedError) as stopped:
            plan_round(setup, progress, 1)
        assert stopped.value.end.ended_by == "not_profiled"
        assert "it could not be traced" in stopped.value.progress.notes[0]
