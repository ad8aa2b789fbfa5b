"""Who writes what, for ranks that have different tensors, as pipeline stages do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from flatout.checkpoint.problems import CheckpointError
from flatout.checkpoint.share import Sharing, items_of
from flatout.checkpoint.state import Collected


class Ranks:
    """Ranks as threads, which gather through a list."""

    def __init__(self, num_ranks: int, num_hosts: int = 1) -> None:
        self.barrier = threading.Barrier(num_ranks)
        self.values: list[Any] = [None] * num_ranks
        self.num_ranks, self.a_host = num_ranks, num_ranks // num_hosts

    def run(self, tensors: list[dict[str, torch.Tensor]], *, is_local: bool = False) -> list[set[str]]:
        """What each rank writes."""
        written: list[set[str]] = [set() for _ in tensors]

        def rank(number: int) -> None:
            collected = Collected(tensors=tensors[number], parameters=set(tensors[number]), own={}, values={})
            items, _ = items_of(collected)
            sharing = Sharing(Rank(self, number))  # type: ignore[arg-type]
            assert sharing.fingerprint(items) != 0
            sharing.compare(items)
            assert sharing.fingerprint(items) == 0
            for item in items:
                if sharing.is_written_here(item, is_local=is_local):
                    written[number].add(item.name + ("!" if sharing.own(item) else ""))

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return written


class Rank:
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self.rank, self.world_size = ranks, rank, ranks.num_ranks
        first = rank // ranks.a_host * ranks.a_host
        self.host_ranks = list(range(first, first + ranks.a_host))

    def gather(self, value: Any) -> list[Any]:
        self._ranks.values[self.rank] = value
        self._ranks.barrier.wait(10)
        values = list(self._ranks.values)
        self._ranks.barrier.wait(10)
        return values


def test_tensors_of_some_ranks_are_written_by_one_of_these() -> None:
    stages = [{"embed": torch.ones(8), "tied": torch.ones(4)}, {"middle": torch.ones(6)}]
    stages.append({"head": torch.ones(8), "tied": torch.ones(4)})
    written = Ranks(3).run(stages)
    assert written[1] == {"middle"}
    assert sorted(name for one in written for name in one) == ["embed", "head", "middle", "tied"]


def test_the_same_name_with_other_values_or_shapes_is_each_ranks_own() -> None:
    written = Ranks(2).run([{"w": torch.ones(8), "n": torch.ones(2)}, {"w": torch.zeros(8), "n": torch.ones(3)}])
    assert written == [{"w!", "n!"}, {"w!", "n!"}]


def test_the_bytes_are_spread() -> None:
    alike = {f"w{number}": torch.ones(number + 1) for number in range(40)}
    written = Ranks(4).run([alike] * 4)
    loads = [sum(alike[name].numel() for name in one) for one in written]
    assert sum(loads) == sum(one.numel() for one in alike.values()) and max(loads) - min(loads) <= 2


def test_each_host_writes_all_that_its_ranks_need() -> None:
    alike = {f"w{number}": torch.ones(10) for number in range(8)}
    written = Ranks(4, num_hosts=2).run([alike] * 4, is_local=True)
    for first, second in (written[:2], written[2:]):
        assert first | second == set(alike) and not first & second


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.ones(2, 2).to_sparse(), "torch.sparse_coo"),
        (torch.ones(2, device="meta"), "on the meta device"),
        (torch.zeros(2).to(torch.float8_e4m3fnuz), "dtype torch.float8_e4m3fnuz"),
    ],
    ids=["sparse", "meta", "dtype"],
)
def test_tensors_that_no_file_can_hold_are_refused(tensor: torch.Tensor, what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as caught:
        items_of(Collected(tensors={"model.w": tensor}, parameters=set(), own={}, values={}))
    assert "`model.w`" in str(caught.value) and "\n" not in str(caught.value)
