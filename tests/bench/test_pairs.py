"""Pairs of ranks: each pair is measured, its data are checked, and a slow link is not taken for a slow rank or rail."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.bench.bench_command import bench, small

from flatout.doctor.peers import MIN_PEERS, outliers
from flatout.probe.ceilings.collectives import pattern
from flatout.probe.ceilings.pairs import peer_benchmarks, tournament, wrong_elements
from flatout.probe.ceilings.slow_links import PAIR_SHARE, LinkDifferences, slow_links
from flatout.records.ceilings import Ceilings, Measurement
from flatout.report.pairs_text import pair_lines
from flatout.report.terminal import TextStyle

CPU = torch.device("cpu")
GB = 1e9


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 13])
def test_every_pair_meets_once_and_nobody_has_two_partners_at_a_time(num_ranks: int) -> None:
    rounds = tournament(num_ranks)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(num_ranks), 2))
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize("wrong", [0, 4095])
def test_one_wrong_element_is_found_wherever_it_is(wrong: int) -> None:
    right = pattern(torch, 4096, (3,), CPU)
    found = right.clone()
    assert wrong_elements(found, right, "rank 3 to rank 0") is None
    found[wrong] += 1
    text = wrong_elements(found, right, "rank 3 to rank 0")
    assert text is not None
    assert text.startswith("rank 3 to rank 0: 1 of 4096 elements are wrong")


def test_what_another_rank_sent_is_wrong() -> None:
    assert wrong_elements(pattern(torch, 64, (1,), CPU), pattern(torch, 64, (2,), CPU), "") is not None


def test_a_shift_by_one_element_is_wrong() -> None:
    right = pattern(torch, 64, (1,), CPU)
    assert wrong_elements(right.roll(1), right, "") is not None


# Slow links among their peers.


def measured(seconds: Callable[[int, int], float], hosts: Sequence[str], name: str = "pair_send") -> list[Measurement]:
    """Return a measurement of each direction of each pair, with a small spread between them."""
    return [
        Measurement(
            name=name,
            value=GB / (seconds(source, target) * (1 + 0.002 * ((3 * source + target) % 4))),
            unit="B/s",
            spread=0.0,
            device="GPU",
            ranks=(source, target),
            n=5,
            seconds=seconds(source, target) * (1 + 0.002 * ((3 * source + target) % 4)),
            checked="",
        )
        for source, target in itertools.permutations(range(len(hosts)), 2)
    ]


def compared(measurements: list[Measurement], hosts: Sequence[str]) -> LinkDifferences:
    return slow_links(measurements, hosts, lambda values, share: outliers(values, share=share), MIN_PEERS)


def slow(seconds: Callable[[int, int], float], hosts: Sequence[str]) -> list[str]:
    return [each.peer for each in compared(measured(seconds, hosts), hosts).differences]


ONE_HOST = ("a",) * 8
TWO_HOSTS = ("a",) * 4 + ("b",) * 4


def test_equal_links_are_not_told() -> None:
    assert slow(lambda source, target: 1.0, ONE_HOST) == []


def test_one_slow_direction_of_one_pair_is_named() -> None:
    assert slow(lambda source, target: 2.0 if (source, target) == (5, 2) else 1.0, ONE_HOST) == ["rank 5 to rank 2"]


def test_a_slow_rank_is_told_once_and_not_for_each_of_its_partners() -> None:
    assert slow(lambda source, target: 2.0 if 3 in (source, target) else 1.0, ONE_HOST) == ["rank 3"]
    assert slow(lambda source, target: 2.0 if 3 in (source, target) else 1.0, ONE_HOST[:4]) == ["rank 3"]


def test_a_slow_rail_is_told_as_a_rail() -> None:
    def seconds(source: int, target: int) -> float:
        is_slow = source // 4 != target // 4 and 2 in (source % 4, target % 4)
        return 3.0 if is_slow else 1.0

    assert slow(seconds, TWO_HOSTS) == ["rail 2 (ranks 2, 6)"]


def test_pairs_between_hosts_are_not_compared_with_those_within() -> None:
    assert slow(lambda source, target: 1.0 if source // 4 == target // 4 else 9.0, TWO_HOSTS) == []


def test_a_fast_link_is_not_told() -> None:
    assert slow(lambda source, target: 0.5 if (source, target) == (5, 2) else 1.0, ONE_HOST) == []


def test_a_slow_pair_among_three_ranks_is_found_but_no_rank_is_judged() -> None:
    found = compared(
        measured(lambda source, target: 2.0 if (source, target) == (0, 1) else 1.0, ("a",) * 3), ("a",) * 3
    )
    assert [each.peer for each in found.differences] == ["rank 0 to rank 1"]
    assert found.num_compared == {"pair_send within a host, pairs": 6}


def test_two_ranks_have_too_few_pairs_to_compare() -> None:
    found = compared(measured(lambda source, target: 1.0 + source, ("a", "a")), ("a", "a"))
    assert (found.differences, found.num_compared) == ([], {})


def test_a_pair_must_be_slower_by_the_share() -> None:
    def by(share: float) -> list[str]:
        return slow(lambda source, target: 1 + share if (source, target) == (0, 2) else 1.0, ONE_HOST)

    # The median of the small spread is 1.003.
    assert by(1.003 * (1 + PAIR_SHARE) - 1 + 0.005) == ["rank 0 to rank 2"]
    assert by(1.003 * (1 + PAIR_SHARE) - 1 - 0.006) == []


def test_a_difference_says_what_is_usual() -> None:
    found = compared(measured(lambda source, target: 2.0 if 3 in (source, target) else 1.0, ONE_HOST), ONE_HOST)
    (rank,) = found.differences
    assert rank.name == "pair_send within a host, ranks"
    assert rank.usual == pytest.approx(GB, rel=0.01)
    assert rank.by == pytest.approx(-0.5, abs=0.01)


# Copies between the memories of GPUs, here with memory of the CPU in their place.


def test_copies_between_devices_are_checked_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.probe.ceilings.pairs.GPU_BYTES", 1 << 12)
    one, other = torch.device("cpu"), torch.device("cpu", 0)
    benchmarks = list(peer_benchmarks(torch, one, [one, other], rank=4))
    assert [(each.name, each.labels["route"]) for each in benchmarks] == [("peer_write", (4, 5)), ("peer_read", (5, 4))]
    assert [each.check() for each in benchmarks] == [None, None]


def test_a_copy_that_corrupts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.probe.ceilings.pairs.GPU_BYTES", 1 << 12)
    right_copy = torch.Tensor.copy_

    def bad_copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
        right_copy(target, source)
        if non_blocking:  # a copy that is measured, not one that prepares the data
            target[100] = 0
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", bad_copy)
    one, other = torch.device("cpu"), torch.device("cpu", 0)
    write, read = peer_benchmarks(torch, one, [one, other], rank=0)
    assert str(write.check()).startswith("rank 0 to rank 1: 1 of 1024 elements are wrong")
    assert str(read.check()).startswith("rank 1 to rank 0: 1 of 1024 elements are wrong")


# As a command, on gloo.

# Rank 2 gets one wrong element from rank 0, and from nobody else.
_CORRUPTS = """
if os.environ.get("RANK") == "2":
    from flatout.probe.ceilings import pairs
    right = pairs.Pairs._one_way
    def corrupted(self, route, count):
        right(self, route, count)
        if route == (0, 2):
            self.received[count // 2] += 1
    pairs.Pairs._one_way = corrupted
"""


@pytest.mark.usefixtures("warm")
def test_a_link_that_corrupts_is_named_and_its_speed_is_omitted() -> None:
    done = bench("--ranks", "3", "--only", "pair_send", "--time", "10s", "--json", inject=small() + _CORRUPTS)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    (wrong,) = result["wrong"]
    assert (wrong["name"], wrong["ranks"]) == ("pair_send", [0, 2])
    assert wrong["reason"].startswith("rank 0 to rank 2: 1 of ")
    routes = sorted(tuple(each["ranks"]) for each in result["measurements"])
    assert routes == sorted(set(itertools.permutations(range(3), 2)) - {(0, 2)})
    assert result["hosts"] == [result["host"]] * 3


def test_the_text_has_the_usual_and_the_slowest_pair() -> None:
    pairs = measured(lambda source, target: 2.0 if (source, target) == (5, 2) else 1.0, TWO_HOSTS)
    trips = measured(lambda source, target: 2e-6, TWO_HOSTS, name="pair_round_trip")
    ceilings = Ceilings(
        host="a", taken_at="", took_s=1, device="GPU", num_devices=8, is_gpu=True, backend="nccl", software="",
        measurements=(*pairs, *trips), hosts=TWO_HOSTS,
    )  # fmt: skip
    text = "\n".join(pair_lines(ceilings, TextStyle(width=120)))
    assert "32 between hosts" in text
    assert "24 within hosts" in text
    assert "rank 5 to 2" in text
    assert "us one way" in text
