"""What the runner makes of how a launcher's command ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flatout.errors import FlatoutError
from flatout.launch import ExitStatus
from flatout.records.change import ChangeSet
from flatout.trial.journal import Heading, Journal
from flatout.tune.runner import Runner


class ScriptedLauncher:
    """Nothing runs; each time it ends as the next of `ends` says."""

    def __init__(self, *ends: dict[str, object], waits_s: float = 0.0) -> None:
        self.ends = list(ends)
        self.waited_s = 0.0
        self.limits_s: list[float] = []
        self._waits_s = waits_s
        self.clock_s = 0.0

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, output: Path, limit_s: float
    ) -> ExitStatus:
        assert not output.exists()  # each time a fresh folder
        output.write_text("killed\n")
        self.waited_s += self._waits_s
        self.clock_s += self._waits_s
        self.limits_s.append(limit_s)
        usual = {"code": 1, "signal": None, "start_unix_s": 1.0, "end_unix_s": 2.0, "nodes": "n[1-2]", "job": "7"}
        return ExitStatus(**(usual | self.ends.pop(0)))  # type: ignore[arg-type]


def runner(folder: Path, launcher: ScriptedLauncher, *, budget_s: float = 1e6) -> Runner:
    journal = Journal(folder / "journal.jsonl", Heading(tool_version="1", command=("train",), options={}))
    return Runner(
        ("train",),
        folder,
        journal,
        shown_command=("train",),
        budget_s=budget_s,
        say=lambda line: None,
        launcher=launcher,
    )


VOID = {"cause": "void", "reason": "a node failed"}


def test_what_the_cluster_ended_is_run_again_and_blamed_on_nothing(tmp_path: Path) -> None:
    launcher = ScriptedLauncher(VOID, VOID, {"cause": "out_of_memory", "reason": "at its memory limit"})
    found = runner(tmp_path, launcher).trial(ChangeSet(), 5)
    assert (found.outcome, found.problem, found.index) == ("out_of_memory", "at its memory limit", 0)
    assert (found.covariates.nodes, found.covariates.job) == ("n[1-2]", "7")
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 2
    assert launcher.ends == []


def test_a_cluster_that_ends_it_again_and_again_ends_the_tuning(tmp_path: Path) -> None:
    launcher = ScriptedLauncher(*[VOID] * 5)
    with pytest.raises(FlatoutError, match=r"the cluster ended trial-000 3 times in a row, .* a node failed"):
        runner(tmp_path, launcher).trial(ChangeSet(), 5)
    assert len(launcher.ends) == 2
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1


def test_a_scheduler_that_ends_it_at_its_time_limit_is_told(tmp_path: Path) -> None:
    launcher = ScriptedLauncher({"cause": "timed_out", "reason": "at the limit of its job"})
    found = runner(tmp_path, launcher).trial(ChangeSet(), 5)
    assert (found.outcome, found.problem) == ("timed_out", "at the limit of its job")


def test_the_wait_in_a_queue_takes_nothing_from_the_next_trials_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five minutes are the budget, and an hour is spent in the queue before each."""
    launcher = ScriptedLauncher({}, {}, waits_s=3600.0)
    monkeypatch.setattr("time.monotonic", lambda: launcher.clock_s)
    made = runner(tmp_path, launcher, budget_s=300.0)
    for _ in range(2):
        made.trial(ChangeSet(), 5)
    assert launcher.limits_s == [300.0 + 10.0] * 2
