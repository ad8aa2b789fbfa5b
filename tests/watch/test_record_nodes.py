"""A trace of a job on several nodes: each node's `flatout run` asks its ranks, or the watcher says why one has none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.keep.beating import Clock, Rank

from flatout.keep.job_identity import JobIdentity
from flatout.keep.peer_board import PeerBoard, PeerRank, PeerStatus
from flatout.keep.trace_requests import TraceRequests
from flatout.watch import record, record_nodes
from flatout.watch.jobs import RunningJob
from flatout.watch.record import record_steps
from flatout.watch.record_nodes import OtherNodes

S = 10**9
IDENTITY = JobIdentity(name=None, spans_nodes=True, node_key="a", job_key="a")
OTHER_JOB = JobIdentity(name=None, spans_nodes=True, node_key="b", job_key="b")
REQUEST = "trace-request"


class Node:
    """What one node's `flatout run` does about its ranks, each time that it looks."""

    def __init__(
        self, folder: Path, name: str, ranks: tuple[int, ...], world_size: int, identity: JobIdentity = IDENTITY
    ) -> None:
        self.now = 100.0
        self.attempt = folder / f"state-{name}" / "attempt-0"
        self.attempt.mkdir(parents=True, exist_ok=True)
        self.board = PeerBoard(folder, name, identity, clock=lambda: self.now)
        self.requests = TraceRequests(self.board, clock=lambda: self.now)
        self.ranks = [
            PeerRank(rank=number, steps=12, phase="data", sequences={}, world_size=world_size, step_s=0.1)
            for number in ranks
        ]
        self.looks()

    def looks(self) -> None:
        self.now += 1.1
        self.board.look(lambda: self.ranks)
        self.requests.look(self.attempt)

    def asked(self) -> dict[str, object] | None:
        path = self.attempt / REQUEST
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    return folder


@pytest.fixture
def job(books: Path, monkeypatch: pytest.MonkeyPatch) -> RunningJob:
    """A job whose rank 0 runs here, at step 10, with 0.1 s per step; its world has three ranks."""
    state = books / "state-n0"
    state.mkdir()
    rank = Rank(state / "attempt-0", 0, 3, Clock(time.monotonic_ns() - 60 * S), monkeypatch)
    for _ in range(10):
        rank.spends("compute", S // 10)
        rank.steps()
    ledger = books / "ledger-n0.jsonl"
    return RunningJob(program="flatout run", name="train.py", pid=os.getpid(), folder=state, pids=(8,), ledger=ledger)


def traces_when_asked(nodes: list[Node], folder: Path) -> Callable[[float], None]:
    def wait(_: float) -> None:
        (folder / "rank0.json").write_text("{}")
        for node in nodes:
            node.looks()
            if node.asked() is not None:
                for rank in node.ranks:
                    (folder / f"rank{rank.rank}.json").write_text("{}")

    return wait


def test_the_ranks_of_all_nodes_are_asked_for_the_same_steps_once(job: RunningJob, books: Path, tmp_path: Path) -> None:
    own, other = Node(books, "n0", (0,), 3), Node(books, "n1", (1, 2), 3)
    another_job = Node(books, "n2", (1, 2), 3, OTHER_JOB)
    folder = tmp_path / "out"
    recorded = record_steps(job, 5, folder, sleep=traces_when_asked([own, other, another_job], folder))
    assert recorded.ranks == (0, 1, 2) and recorded.problems == {}
    # the ranks of n1 are at step 12; 6.5 s of 0.1 s each, and 3 steps
    assert other.asked() == own.asked() == {"first_step": 12 + 65 + 3, "num_steps": 5, "folder": str(folder)}
    assert another_job.asked() is None
    assert not list(folder.glob(".*")), "nothing but traces is left"
    (other.attempt / REQUEST).unlink()
    other.looks()
    assert other.asked() is None, "a request is passed on once"


def test_an_attempt_is_not_asked_for_what_an_earlier_one_was_asked(
    job: RunningJob, books: Path, tmp_path: Path
) -> None:
    Node(books, "n0", (0,), 3)
    other = Node(books, "n1", (1, 2), 3)
    nodes = OtherNodes(job, {0}, 3)
    (tmp_path / "out").mkdir()
    nodes.ask(tmp_path / "out", 80, 5)
    other.attempt = other.attempt.with_name("attempt-1")
    other.attempt.mkdir()
    other.looks()
    other.looks()
    assert other.asked() is None
    nodes.ask(tmp_path / "out", 90, 5)
    other.requests.look(other.attempt)
    assert other.asked() is None, "it looks once per second"
    other.looks()
    assert other.asked() == {"first_step": 90, "num_steps": 5, "folder": str(tmp_path / "out")}


def test_a_rank_without_a_trace_has_the_reason(
    job: RunningJob, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node(books, "n0", (0,), 3)
    Node(books, "n1", (1,), 3)  # does not look again
    folder = tmp_path / "out"
    monkeypatch.setattr(record, "_PATIENCE_ELSEWHERE_S", -100.0)
    recorded = record_steps(job, 5, folder, sleep=lambda _: None)
    assert recorded.problems[1] == "no answer from n1"
    assert recorded.problems[2].startswith("it was not asked: no report of it here")
    assert recorded.problems[0].startswith("no trace within")


def test_a_node_that_does_not_see_the_folder_says_so(job: RunningJob, books: Path, tmp_path: Path) -> None:
    Node(books, "n0", (0,), 3)
    other = Node(books, "n1", (1, 2), 3)
    folder = tmp_path / "out"

    def wait(_: float) -> None:
        (folder / "rank0.json").write_text("{}")
        for marker in folder.glob(".asked-*"):
            marker.unlink()  # as on a host with another folder of this name
        other.looks()

    recorded = record_steps(job, 5, folder, sleep=wait)
    why = f"n1 did not ask it: {folder} is not there, or not the same folder as on n0"
    assert (recorded.ranks, recorded.problems) == ((0,), {1: why, 2: why})
    assert other.asked() is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attempt": 1}, "it ended before the traced steps did"),
        ({"ranks": ()}, "it ended before the traced steps did"),
        ({"pid": 0}, "the Flatout of n1 is older and does not ask its ranks"),
        (15.5, "no report from n1 for 15 s"),
        (14.0, None),
        (None, "no report from n1 for 15 s"),
    ],
)
def test_a_node_that_changes_after_it_was_asked_is_not_waited_for(
    job: RunningJob, books: Path, tmp_path: Path, change: dict[str, object] | float | None, why: str | None
) -> None:
    Node(books, "n0", (0,), 2)
    Node(books, "n1", (1,), 2)
    nodes = OtherNodes(job, {0}, 2)
    assert nodes.ranks == {1} and nodes.problems() == {}
    path = books / "nodes" / "n1.json"
    if change is None:
        path.unlink()
    elif isinstance(change, float):
        os.utime(path, (time.time() - change,) * 2)
    else:
        status = msgspec.json.decode(path.read_bytes(), type=PeerStatus)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(status, **change)))
    assert nodes.problems() == ({} if why is None else {1: why})


def test_ranks_of_another_process_with_this_nodes_ranks_are_not_taken_for_the_jobs(
    job: RunningJob, books: Path
) -> None:
    Node(books, "n1", (1,), 2)
    Node(books, "n0", (0,), 2)
    assert not OtherNodes(msgspec.structs.replace(job, pid=job.pid + 1), {0}, 2).ranks
    assert not OtherNodes(msgspec.structs.replace(job, ledger=None), {0}, 2).ranks
    assert not OtherNodes(job, {0}, 4).ranks, "a world of another size is of an earlier start"


def test_a_folder_that_cannot_be_written_to_is_the_reason_for_the_ranks_of_the_other_nodes(
    job: RunningJob, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Node(books, "n0", (0,), 3)
    Node(books, "n1", (1, 2), 3)
    folder = tmp_path / "out"

    def refuse(path: Path, request: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(record_nodes, "ask_nodes", refuse)
    recorded = record_steps(job, 5, folder, sleep=lambda _: (folder / "rank0.json").touch())
    why = f"n1 was not asked: {books / 'nodes'} cannot be written to: read-only file system"
    assert (recorded.ranks, recorded.problems) == ((0,), {1: why, 2: why})


def test_a_rank_of_this_host_that_has_made_no_step_is_not_taken_for_one_of_another_node(
    job: RunningJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rank(job.folder / "attempt-0", 1, 3, Clock(time.monotonic_ns()), monkeypatch)
    folder = tmp_path / "out"
    recorded = record_steps(job, 5, folder, sleep=lambda _: (folder / "rank0.json").touch())
    assert recorded.problems[1] == "it had ended, or not made two steps yet, when the others were asked"
    assert recorded.problems[2].startswith("it was not asked: no report of it here")
