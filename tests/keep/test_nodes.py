"""What nodes hear of each other through a folder: what is new, who is lost, and why another one gave up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from flatout.keep.job_identity import JobIdentity
from flatout.keep.peer_board import LOST_AFTER_S, PeerBoard, PeerRank

TORCHRUN = JobIdentity(name=None, spans_nodes=True, node_key="a", job_key="a", awaits_nodes=True)
TASKS = JobIdentity(name=None, spans_nodes=True, node_key="a", job_key="a")
ON_ONE_NODE = JobIdentity(name="x", spans_nodes=False, node_key="a", job_key="a", awaits_nodes=True)


def rank(number: int, world_size: int = 3) -> PeerRank:
    return PeerRank(rank=number, steps=5, phase="data", sequences={"0": 7}, waits=False, world_size=world_size)


RANKS = {"n1": rank(0), "n2": rank(1), "n3": rank(2)}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def pair(folder: Path) -> tuple[PeerBoard, PeerBoard, Clock]:
    clock = Clock()
    first, second = (PeerBoard(folder, name, TORCHRUN, clock=clock) for name in ("n1", "n2"))
    for _ in range(3):
        later(clock, first, second)
    return first, second, clock


def later(clock: Clock, *nodes: PeerBoard, seconds: float = 1.5) -> None:
    clock.now += seconds
    for node in nodes:
        node.look(lambda name=node.name: [RANKS[name]])  # type: ignore[misc]


def test_each_hears_of_the_others_ranks_and_not_of_its_own(tmp_path: Path) -> None:
    first, second, _ = pair(tmp_path)
    assert [(told.node, told.ranks) for told in first.others()] == [("n2", (RANKS["n2"],))]
    assert [told.node for told in second.others()] == ["n1"]


def test_a_node_that_tells_nothing_any_more_is_lost_and_told_once_until_it_is_back(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    later(clock, first)  # hears the last that was told
    later(clock, first, seconds=LOST_AFTER_S - 2)
    assert first.newly_lost() == [] and len(first.others()) == 1
    later(clock, first, seconds=3)
    assert (first.newly_lost(), first.newly_lost(), first.others()) == (["n2"], [], [])
    later(clock, second, first)
    assert first.newly_lost() == [] and len(first.others()) == 1
    later(clock, first, seconds=LOST_AFTER_S + 1)
    assert first.newly_lost() == ["n2"], "lost again"


def test_what_failed_elsewhere_is_heard_and_what_is_old_is_not(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    second.fails("rank 1 raised ValueError")
    assert first.reason() == "on n2: rank 1 raised ValueError"
    second.fails(None)  # a node that only lost its peers knows no reason
    clock.now += 1.5
    assert [told.failure for told in first.others()] == ["rank 1 raised ValueError"], "it has not looked"


def test_why_another_node_gave_up_ends_the_job_unless_the_launcher_is_elastic(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    elastic = PeerBoard(tmp_path, "n3", TORCHRUN, others_go_on=True, clock=clock)
    assert first.given_up() is None
    second.gives_up("all 3 restarts are used up")
    later(clock, first, elastic)
    assert first.given_up() == "n2 does not restart it: all 3 restarts are used up"
    assert elastic.given_up() is None
    later(clock, first, seconds=LOST_AFTER_S + 1)
    assert "n2" not in first.newly_lost(), "it has ended, and is not lost"


def test_a_node_that_goes_back_is_followed_by_those_of_its_job_while_it_runs(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    assert second.reverted_node() is None
    first.reverts()
    later(clock, second)
    assert (first.reverted_node(), second.reverted_node()) == (None, "n1")
    began_s = clock.now
    assert second.reason() is None
    assert clock.now == began_s, "its ranks were ended on purpose: no failure is waited for"
    new = PeerBoard(tmp_path, "n3", TORCHRUN, clock=clock)
    later(clock, new)
    later(clock, new)
    assert new.reverted_node() is None, "n1 has said nothing since"


def test_what_an_earlier_job_left_in_the_folder_is_not_heard(tmp_path: Path) -> None:
    _, second, clock = pair(tmp_path)
    second.gives_up("a bug")
    new = PeerBoard(tmp_path, "n1", TORCHRUN, clock=clock)
    later(clock, new)
    later(clock, new)
    assert new.given_up() is None and new.others() == []


def test_without_a_folder_and_with_damaged_files_nothing_is_heard(tmp_path: Path) -> None:
    alone = PeerBoard(None, "n1", TORCHRUN)
    alone.begins(0)
    alone.fails("x")
    assert (alone.others(), alone.given_up(), alone.reason(), alone.newly_lost()) == ([], None, None, [])
    first, _, clock = pair(tmp_path)
    (tmp_path / "nodes" / "n2.json").write_bytes(b"{torn")
    (tmp_path / "nodes" / "n9.json").write_bytes(b"\x00")
    later(clock, first)
    assert [told.node for told in first.others()] == ["n2"]


def test_what_others_put_into_the_folder_is_neither_written_to_nor_waited_for(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    partial = nodes / f".a.json.{os.getpid()}"
    for put in (lambda: partial.symlink_to(mine), lambda: os.mkfifo(partial), lambda: os.link(mine, partial)):
        put()
        (nodes / "a.json").unlink(missing_ok=True)
        (nodes / "a.json").symlink_to(mine)
        board = PeerBoard(tmp_path, "a", TORCHRUN)
        board.begins(0)
        assert mine.read_text() == "precious"
        assert json.loads((nodes / "a.json").read_text())["node"] == "a"


def test_names_are_masked_as_in_all_that_is_written(tmp_path: Path) -> None:
    node = PeerBoard(tmp_path, "host-1", TORCHRUN, clean=lambda text: text.replace("secret", "***"))
    node.fails("on secret")
    node.gives_up("secret ended")
    assert "secret" not in (tmp_path / "nodes" / "host-1.json").read_text()


@pytest.mark.parametrize("theirs", ["b", ""])
def test_what_another_job_tells_in_the_same_folder_is_not_heard(
    tmp_path: Path, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty key is that of a status which an older Flatout writes."""
    clock = Clock()
    monkeypatch.setattr("time.sleep", clock.sleep)  # a reason is waited for
    other_job = JobIdentity(name=None, spans_nodes=True, node_key=theirs, job_key=theirs, awaits_nodes=True)
    mine, part = (PeerBoard(tmp_path, name, TORCHRUN, clock=clock) for name in ("n1", "n2"))
    other = PeerBoard(tmp_path, "n3", other_job, clock=clock)
    nodes = (mine, part, other)
    for _ in range(3):
        later(clock, *nodes)
    assert [{told.node for told in node.others()} for node in nodes] == [{"n2"}, {"n1"}, set()]
    other.fails("a bug")
    other.gives_up("a bug")
    later(clock, *nodes)
    assert (mine.given_up(), mine.reason()) == (None, None)
    later(clock, mine, part, seconds=LOST_AFTER_S + 1)
    assert "n3" not in mine.newly_lost()


def test_a_job_on_one_node_neither_tells_nor_hears_whatever_its_name(tmp_path: Path) -> None:
    clock = Clock()
    alone = PeerBoard(tmp_path, "n1", ON_ONE_NODE, clock=clock)
    assert not (tmp_path / "nodes").exists()
    other = PeerBoard(tmp_path, "n2", TORCHRUN, clock=clock)
    for _ in range(3):
        later(clock, alone, other)
    other.gives_up("a bug")
    later(clock, alone)
    assert (alone.others(), alone.given_up(), alone.reason(), other.others()) == ([], None, None, [])


def test_a_job_of_the_same_name_is_told_once_and_not_heard(tmp_path: Path) -> None:
    clock = Clock()
    keys = {"n1": "a", "n2": "b", "n3": "a"}
    first, other, part = (
        PeerBoard(tmp_path, name, JobIdentity(name="100", spans_nodes=True, node_key=key, job_key=key), clock=clock)
        for name, key in keys.items()
    )
    assert first.new_namesakes() == [], "it may have ended long ago"
    for _ in range(3):
        later(clock, first, other, part)
    assert (first.new_namesakes(), first.new_namesakes(), other.new_namesakes()) == (["n2"], [], ["n1", "n3"])
    assert [told.node for told in first.others()] == ["n3"]


@pytest.mark.parametrize("ranks", [(rank(0), rank(0)), (rank(0, 2), rank(1, 3)), (rank(0), None)])
def test_tasks_whose_ranks_are_not_of_one_world_do_not_end_each_other(
    tmp_path: Path, ranks: tuple[PeerRank, PeerRank | None]
) -> None:
    """As of a sweep: the tasks of a Slurm step run the same command, and each is a job of its own."""
    clock = Clock()
    boards = [PeerBoard(tmp_path, name, TASKS, clock=clock) for name in ("n1", "n2")]
    for _ in range(3):
        clock.now += 1.5
        for board, each in zip(boards, ranks, strict=True):
            board.look(lambda each=each: [each] if each is not None else [])  # type: ignore[misc]
    boards[1].gives_up("a bug")
    clock.now += 1.5
    boards[0].look(lambda: [rank(0)])
    assert boards[0].given_up() is None


def test_a_node_whose_ranks_never_came_is_needed_by_a_launcher_that_waits_for_it(tmp_path: Path) -> None:
    for identity, is_ended in ((TORCHRUN, True), (TASKS, False)):
        clock = Clock()
        first, second = (PeerBoard(tmp_path, name, identity, clock=clock) for name in ("n1", "n2"))
        for _ in range(2):
            clock.now += 1.5
            first.look(list)
            second.look(list)
        second.gives_up("the command was not found")
        clock.now += 1.5
        first.look(list)
        assert (first.given_up() is not None) == is_ended


def test_a_node_that_came_later_and_failed_before_the_ranks_here_came_is_needed(tmp_path: Path) -> None:
    """As by a mistake at the start of the script: the ranks here would wait for it in vain."""
    clock = Clock()
    first = PeerBoard(tmp_path, "n1", TORCHRUN, clock=clock)
    clock.now += 1.5
    first.look(list)
    second = PeerBoard(tmp_path, "n2", TORCHRUN, clock=clock)
    clock.now += 1.5
    second.look(lambda: [RANKS["n2"]])
    first.look(list)
    second.gives_up("a restart would not help")
    clock.now += 1.5
    first.look(lambda: [msgspec.structs.replace(RANKS["n1"], steps=0)])
    assert first.given_up() == "n2 does not restart it: a restart would not help"


def test_a_run_that_begins_while_the_last_one_of_another_node_gives_up_does_not_end_with_it(tmp_path: Path) -> None:
    """The word is about an attempt in which this run had no part."""
    _, second, clock = pair(tmp_path)
    new = PeerBoard(tmp_path, "n1", TORCHRUN, clock=clock)
    for _ in range(2):
        clock.now += 1.5
        second.look(lambda: [RANKS["n2"]])
        new.look(list)
    second.gives_up("all restarts are used up")
    later(clock, new)
    assert new.given_up() is None


def test_a_node_that_ended_well_is_not_lost(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    second.ends()
    for seconds in (1.5, LOST_AFTER_S + 1):
        later(clock, first, seconds=seconds)
        assert first.newly_lost() == []
    assert first.given_up() is None


def test_a_new_run_of_a_node_that_gives_up_does_not_end_ranks_that_do_without_it(tmp_path: Path) -> None:
    """The ranks here ran beside an earlier run of that node, and make steps since."""
    first, second, clock = pair(tmp_path)
    second.ends()
    first.begins(2)
    new = PeerBoard(tmp_path, "n2", TORCHRUN, clock=clock)
    later(clock, first)
    new.gives_up("the command was not found")
    later(clock, first)
    assert first.given_up() is None
    first.begins(3)
    clock.now += 1.5
    first.look(list)
    assert first.given_up() == "n2 does not restart it: the command was not found", "the launcher here waits for it"


def test_a_word_about_an_earlier_attempt_does_not_end_ranks_that_do_without_that_node(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    second.fails("rank 1 raised ValueError")
    first.begins(2)
    later(clock, first)
    second.gives_up("all restarts are used up")
    later(clock, first)
    assert first.given_up() is None, "the ranks here make steps in an attempt that never had that node's"
    first.begins(3)
    assert first.given_up() == "n2 does not restart it: all restarts are used up"


def test_a_word_about_this_attempt_ends_the_ranks_beside_it(tmp_path: Path) -> None:
    first, second, clock = pair(tmp_path)
    for board in (first, second):
        board.begins(2)
    later(clock, first, second)
    later(clock, first, second)
    second.gives_up("all restarts are used up")
    later(clock, first)
    assert first.given_up() == "n2 does not restart it: all restarts are used up"
