"""The collectives that a table can choose for, on tensors whose results are known for every element and rank.

The contribution of a rank carries the rank, so that an all-gather in the wrong order is found: some settings made one
that was fast (NVIDIA/nccl#1906). All values are whole numbers that fp32 holds exactly, so every element is compared.
A size is that of the larger buffer, as NCCL and nccl-tests count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PERIOD = 251
_ELEMENT_BYTES = 4


def num_elements(num_bytes: int, num_ranks: int) -> int:
    """Return the elements of the larger buffer: each rank's share of them has the same size."""
    return max(1, num_bytes // _ELEMENT_BYTES // num_ranks) * num_ranks


class Buffers:
    """The input and output of one collective on one rank of a group."""

    def __init__(self, torch: Any, device: Any, ranks: Sequence[int], rank: int, largest_bytes: int) -> None:
        self.torch, self.device = torch, device
        self.ranks, self.place = tuple(ranks), list(ranks).index(rank)
        count = num_elements(largest_bytes, len(ranks))
        self.input = torch.zeros(count, device=device)
        self.output = torch.zeros(count, device=device)

    def call(self, collective: str, num_bytes: int, group: Any) -> None:
        """Run the collective once on these buffers."""
        dist = self.torch.distributed
        count = num_elements(num_bytes, len(self.ranks))
        share = count // len(self.ranks)
        first = self.ranks[0]
        match collective:
            case "all_reduce":
                dist.all_reduce(self.input[:count], group=group)
            case "broadcast":
                dist.broadcast(self.input[:count], src=first, group=group)
            case "reduce":
                dist.reduce(self.input[:count], dst=first, group=group)
            case "all_gather":
                dist.all_gather_into_tensor(self.output[:count], self.input[:share], group=group)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self.output[:share], self.input[:count], group=group)
            case _:
                raise ValueError(f"no such collective: {collective}")

    def fill(self, collective: str, num_bytes: int) -> None:
        """Put this rank's contribution into the input, and NaN into the output."""
        count = num_elements(num_bytes, len(self.ranks))
        self.input[:count] = self._contribution(self.place, count, 0)
        self.output[:count] = float("nan")

    def empty(self) -> None:
        """Make all values 0, so that repeated sums stay 0."""
        self.input.zero_()
        self.output.zero_()

    def wrong(self, collective: str, num_bytes: int) -> str | None:
        """Describe the error in the result of a call after `fill`; None if it is right."""
        n = len(self.ranks)
        count = num_elements(num_bytes, n)
        share = count // n
        is_root = self.place == 0
        if collective == "reduce" and not is_root:
            return None
        everyone = range(n)
        match collective:
            case "all_reduce" | "reduce":
                result, right = self.input[:count], self._sum(everyone, count, 0)
            case "broadcast":
                result, right = self.input[:count], self._contribution(0, count, 0)
            case "all_gather":
                shares = [self._contribution(place, share, 0) for place in everyone]
                result, right = self.output[:count], self.torch.cat(shares)
            case _:
                result, right = self.output[:share], self._sum(everyone, share, self.place * share)
        is_wrong = result != right
        num_wrong = int(is_wrong.sum())
        if not num_wrong:
            return None
        at = int(is_wrong.int().argmax())
        return f"{num_wrong} of {len(result)} elements are wrong: {result[at]:g} where {right[at]:g} is right"

    def _contribution(self, place: int, count: int, first: int) -> Any:
        index = self.torch.arange(first, first + count, device=self.device, dtype=self.torch.int32)
        return (index % _PERIOD + (place + 1)).to(self.torch.float32)

    def _sum(self, places: Sequence[int], count: int, first: int) -> Any:
        total = self._contribution(0, count, first) * len(places)
        return total + float(sum(places))
