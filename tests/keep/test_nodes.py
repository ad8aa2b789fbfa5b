"""What nodes hear of each other through a folder: what is new, who is lost, and why another one gave up."""

from __future__ import annotations

from pathlib import Path

from flatout.keep.peer_board import LOST_AFTER_S, PeerBoard, PeerRank

RANK = PeerRank(rank=1, steps=5, phase="data", sequences={"0": 7}, waits=False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pair(folder: Path) -> tuple[PeerBoard, PeerBoard, Clock]:
    clock = Clock()
    first, second = PeerBoard(folder, "n1", clock=clock), PeerBoard(folder, "n2", clock=clock)
    for _ in range(3):
        later(clock, first, second)
    return first, second, clock


def later(clock: Clock, *nodes: PeerBoard, seconds: float = 1.5) -> None:
    clock.now += seconds
    for node in nodes:
        node.look(lambda: [RANK])


def test_each_hears_of_the_others_ranks_and_not_of_its_own(tmp_path: Path) -> None:
    first, second, _ = pair(tmp_path)
    assert [(told.node, told.ranks) for told in first.others()] == [("n2", (RANK,))]
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
    elastic = PeerBoard(tmp_path, "n3", others_go_on=True, clock=clock)
    assert first.given_up() is None
    second.gives_up("all 3 restarts are used up")
    later(clock, first, elastic)
    assert first.given_up() == "n2 does not restart it: all 3 restarts are used up"
    assert elastic.given_up() is None
    later(clock, first, seconds=LOST_AFTER_S + 1)
    assert "n2" not in first.newly_lost(), "it has ended, and is not lost"


def test_what_an_earlier_job_left_in_the_folder_is_not_heard(tmp_path: Path) -> None:
    _, second, clock = pair(tmp_path)
    second.gives_up("a bug")
    new = PeerBoard(tmp_path, "n1", clock=clock)
    later(clock, new)
    later(clock, new)
    assert new.given_up() is None and new.others() == []


def test_without_a_folder_and_with_damaged_files_nothing_is_heard(tmp_path: Path) -> None:
    alone = PeerBoard(None, "n1")
    alone.begins(0)
    alone.fails("x")
    assert (alone.others(), alone.given_up(), alone.reason(), alone.newly_lost()) == ([], None, None, [])
    first, _, clock = pair(tmp_path)
    (tmp_path / "nodes" / "n2.json").write_bytes(b"{torn")
    (tmp_path / "nodes" / "n9.json").write_bytes(b"\x00")
    later(clock, first)
    assert [told.node for told in first.others()] == ["n2"]


def test_names_are_masked_as_in_all_that_is_written(tmp_path: Path) -> None:
    node = PeerBoard(tmp_path, "host-1", clean=lambda text: text.replace("secret", "***"))
    node.fails("on secret")
    node.gives_up("secret ended")
    assert "secret" not in (tmp_path / "nodes" / "host-1.json").read_text()


def test_what_another_job_tells_in_the_same_folder_is_not_heard(tmp_path: Path) -> None:
    clock = Clock()
    mine, part, other = (
        PeerBoard(tmp_path, name, job=job, clock=clock) for name, job in (("n1", "a"), ("n1+2", "a"), ("n2", "b"))
    )
    beside, elsewhere = PeerBoard(tmp_path, "n3", clock=clock), PeerBoard(tmp_path, "n4", clock=clock)
    twin = PeerBoard(tmp_path, "n3+2", clock=clock)  # it may be of any job
    nodes = (mine, part, other, beside, elsewhere, twin)
    for _ in range(3):
        later(clock, *nodes)
    heard = [{told.node for told in node.others()} for node in nodes]
    assert heard == [{"n1+2"}, {"n1"}, set(), {"n4"}, {"n3", "n3+2"}, {"n4"}]
    other.gives_up("a bug")
    later(clock, *nodes)
    assert mine.given_up() is None
