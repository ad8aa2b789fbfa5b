"""The controller on a scheduler that is made up: what it asks for, in which order, and what it remembers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.schedule.live.made import NOW, cluster, node, pending, running

from flatout.errors import FlatoutError
from flatout.schedule.live.actions import Action
from flatout.schedule.live.controller import Controller, run
from flatout.schedule.live.decide import ControllerSettings
from flatout.schedule.live.log import LogFile, read_log
from flatout.schedule.live.orders import fifo, shortest
from flatout.schedule.live.selectors import selectors
from flatout.schedule.live.slurm import RefusedError, UnavailableError
from flatout.schedule.live.view import ClusterView, JobView

URGENT = ControllerSettings(urgent=selectors("--urgent", ["comment=urgent"]))


class MadeUp:
    """A scheduler with a view that does not change by itself; `fails` are kinds of actions that end in an error."""

    def __init__(self, view: ClusterView, **fails: FlatoutError) -> None:
        self.view, self.fails = view, fails
        self.done: list[str] = []
        self.now: ClusterView | None = None  # for the look just before a requeue

    def cluster(self) -> str:
        return "lab"

    def read(self) -> ClusterView:
        return self.view

    def job(self, job_id: str) -> JobView | None:
        return (self.now or self.view).job(job_id)

    def perform(self, action: Action) -> None:
        if error := self.fails.get(action.kind.replace("-", "_")):
            raise error
        self.done.append(f"{action.kind} {action.target}")


def controlled(
    scheduler: MadeUp, log: LogFile | None, settings: ControllerSettings = URGENT, *, most: int = 60
) -> tuple[Controller, list[str]]:
    said: list[str] = []
    made = Controller(
        scheduler, settings, log=log, max_actions_per_hour=most, enrich=lambda view: view, say=said.append
    )
    return made, said


@pytest.fixture
def full() -> ClusterView:
    return cluster(
        *(running(name, {name: 8}) for name in "123"), *map(node, "123"), pending("9", nodes=2, comment="urgent")
    )


def log_in(folder: Path) -> LogFile:
    return LogFile(folder / "log", cluster="lab", command=["x"])


def test_a_group_is_done_whole_or_not_at_all(full: ClusterView, tmp_path: Path) -> None:
    scheduler = MadeUp(full)
    with log_in(tmp_path) as log:
        _, said = controlled(scheduler, log, most=1)
        cycle = controlled(scheduler, log, most=1)[0].cycle()
        assert (scheduler.done, len(cycle.held_back)) == ([], 2)
        controlled(scheduler, log, most=2)[0].cycle()
        assert len(scheduler.done) == 2
    assert said == []


def test_after_a_refusal_the_rest_of_the_group_is_left(full: ClusterView, tmp_path: Path) -> None:
    scheduler = MadeUp(full, requeue_hold=RefusedError("Access/permission denied"))
    with log_in(tmp_path) as log:
        controller, said = controlled(scheduler, log)
        assert controller.cycle().outcomes == ("failed",)
        assert [entry.outcome for entry in log.entries] == ["failed"]
    assert len(said) == 1 and said[0].startswith("refused: requeue job ") and "permission denied" in said[0]


def test_a_job_that_ended_meanwhile_is_not_requeued(full: ClusterView, tmp_path: Path) -> None:
    """Slurm would run a job again that has ended."""
    scheduler = MadeUp(full)
    scheduler.now = cluster(*(running(name, {name: 8}, ran_s=5) for name in "123"))  # other runs of the same jobs
    with log_in(tmp_path) as log:
        controller, said = controlled(scheduler, log)
        assert controller.cycle().outcomes == ("failed",)
        assert (scheduler.done, log.entries) == ([], [])
    assert "it no longer runs" in said[0]


def test_an_action_without_an_answer_is_looked_for_on_the_cluster(full: ClusterView, tmp_path: Path) -> None:
    scheduler = MadeUp(full, requeue_hold=UnavailableError("timed out"))
    with log_in(tmp_path) as log:
        controller, _ = controlled(scheduler, log)
        assert controller.cycle().outcomes == ("unknown",)
        scheduler.view = cluster(pending("3", is_held=True, priority=0), *full.nodes, full.jobs[3])
        controller.cycle()
        target = log.entries[0].action.target
        assert log.entries[0].outcome == ("done" if target == "3" else "failed")


def test_a_requeued_job_keeps_its_place(full: ClusterView, tmp_path: Path) -> None:
    first, other = pending("1", submit_unix_s=NOW, priority=5), pending("2", submit_unix_s=NOW - 60, priority=9)
    view = cluster(first, other, node("a", is_usable=False))
    requeued = Action(
        kind="requeue-hold", target="1", previous="x", value="requeued", reason="x", submit_unix_s=NOW - 900
    )
    with log_in(tmp_path) as log:
        for entry in (log.begin(requeued),):
            log.end(entry, "done")
        scheduler = MadeUp(view)
        controlled(scheduler, log, ControllerSettings(order=fifo))[0].cycle()
    assert scheduler.done in (["priority 1"], ["priority 2"])
    with LogFile(tmp_path / "other", cluster="lab", command=["x"]) as log:
        controlled(scheduler := MadeUp(view), log, ControllerSettings(order=fifo))[0].cycle()
    assert scheduler.done == []


def test_a_dry_run_does_and_writes_nothing(full: ClusterView, tmp_path: Path) -> None:
    scheduler = MadeUp(full)
    controller, said = controlled(scheduler, None)
    assert set(controller.cycle().outcomes) == {"would"}
    assert scheduler.done == [] and not list(tmp_path.iterdir())
    assert all(line.startswith("would requeue job ") for line in said)


def test_a_scheduler_that_is_down_is_tried_again_and_a_full_disk_ends_it(full: ClusterView, tmp_path: Path) -> None:
    scheduler = MadeUp(full)
    answers = [UnavailableError("down"), RefusedError("no"), KeyboardInterrupt()]

    def read() -> ClusterView:
        raise answers.pop(0)

    scheduler.read = read  # type: ignore[method-assign]
    controller, _ = controlled(scheduler, None)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(controller, interval_s=0.01, once=False, say=said.append, report=lambda cycle: None)
    assert said == ["down; trying again in 0 s", "no; trying again in 0 s"]


def test_the_log_says_what_was_before(tmp_path: Path) -> None:
    view = cluster(pending("1", time_limit_s=900), pending("2", time_limit_s=60))
    with log_in(tmp_path) as log:
        controlled(MadeUp(view), log, ControllerSettings(order=shortest))[0].cycle()
    (entry,) = read_log(tmp_path / "log", cluster="lab")[0]
    assert msgspec.structs.asdict(entry.action)["previous"] in ("998", "999")
