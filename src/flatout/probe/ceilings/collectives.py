"""Every collective over sizes from 1 KB to 1 GB, for each shape of process group, on gloo or NCCL.

Groups: `all`; `pairs` (0 and 1, 2 and 3, all at the same time); `node`, the ranks of one host; `across`, the ranks with
the same place on each host. A group equal to another group is skipped. As in nccl-tests, a size is that of the larger
buffer. Data are integers in fp32, so that sums are exact, and every element is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flatout.probe.ceilings.benchmark import Benchmark
from flatout.probe.ceilings.bus import COLLECTIVES, bus_factor
from flatout.probe.ceilings.queued import device_seconds

SMALLEST_BYTES, LARGEST_BYTES = 1 << 10, 1 << 30
_PERIOD = 5
_LARGEST_QUEUED = 64 << 20  # bytes; for larger sizes, Python's share of the time is below 10 %
_AT_ONCE = 1 << 22  # elements that are filled or compared at once


def sizes(largest: int, *, step: int) -> list[int]:
    """Return powers of two, `step` apart, from 1 KB up to `largest`."""
    return [1 << shift for shift in range(10, 31, step) if 1 << shift <= largest]


def shapes(num_ranks: int, hosts: Sequence[int]) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups of each shape; `hosts` gives the host of each rank."""
    every = tuple(range(num_ranks))
    by_host: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    nodes = [tuple(ranks) for ranks in by_host.values()]
    found: dict[str, list[tuple[int, ...]]] = {
        "all": [every],
        "pairs": [(first, first + 1) for first in range(0, num_ranks - 1, 2)],
        "node": nodes,
    }
    if len(nodes) > 1 and len({len(node) for node in nodes}) == 1:
        # Ascending, because a process group numbers its ranks so, in whatever order they are given.
        found["across"] = [tuple(sorted(ranks)) for ranks in zip(*nodes, strict=True)]
    kept: dict[str, list[tuple[int, ...]]] = {}
    for shape, groups in found.items():
        groups = [group for group in groups if len(group) > 1]
        if groups and groups not in kept.values():
            kept[shape] = groups
    return kept


def pattern(torch: Any, count: int, ranks: tuple[int, ...], device: Any, *, first: int = 0) -> Any:
    """Return the sum of the contributions of `ranks`: element i of each is (first + i) mod 5 + rank + 1."""
    index = torch.arange(first, first + count, device=device, dtype=torch.int32)
    return (index % _PERIOD * len(ranks) + sum(rank + 1 for rank in ranks)).to(torch.float32)


def bytes_needed(size: int, *, is_gpu: bool) -> int:
    """Return the bytes per rank for collectives up to `size`: two buffers, those of gloo or NCCL, and the check."""
    return (2 if is_gpu else 4) * size + 32 * _AT_ONCE


class Collectives:
    """The benchmarks of one rank. Every rank creates the same benchmarks in the same order."""

    def __init__(self, torch: Any, device: Any, *, largest: int, step: int, hosts: Sequence[int]) -> None:
        self.torch, self.device = torch, device
        self.dist = torch.distributed
        self.rank, num_ranks = self.dist.get_rank(), self.dist.get_world_size()
        self.sizes = sizes(largest, step=step)
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self.groups: dict[str, tuple[tuple[int, ...], Any] | None] = {}
        for shape, groups in shapes(num_ranks, hosts).items():
            self.groups[shape] = None
            for group in groups:  # every rank takes part in making every group
                made = self.dist.new_group(list(group), backend=self.backend)
                if self.rank in group:
                    self.groups[shape] = (group, made)
        count = self.sizes[-1] // 4
        # One pair of buffers for all benchmarks: each uses the part that it needs.
        self.input = torch.zeros(count, device=device)
        self.output = torch.zeros(count, device=device)

    def benchmarks(self) -> Iterator[Benchmark]:
        for shape, mine in self.groups.items():
            for name in COLLECTIVES:
                for size in self.sizes:
                    yield self._benchmark(name, shape, mine, size)

    def _benchmark(self, name: str, shape: str, mine: tuple[tuple[int, ...], Any] | None, size: int) -> Benchmark:
        labels = {"group": shape, "backend": self.backend, "dtype": "fp32"}
        if mine is None:  # an odd rank without a partner
            return Benchmark(
                name=name, unit="B/s", work=1.0, call=lambda: None, check=lambda: None, checked="", who="group",
                labels={**labels, "size": None, "members": ()}, curve=f"{name} {shape} {size}",
            )  # fmt: skip
        members, group = mine
        n = len(members)
        count = max(1, size // 4 // n) * n  # every member's share has the same size
        return Benchmark(
            name=name,
            unit="B/s",
            work=count * 4 * bus_factor(name, n),
            call=lambda: self._call(name, members, group, count),
            check=lambda: self._check(name, members, group, count),
            checked="every element of each rank",
            who="group",
            sync=self._sync,
            queued=self._queued(name, members, group, count),
            labels={**labels, "size": count * 4, "members": members},
            curve=f"{name} {shape}",
        )

    def _sync(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def _queued(
        self, name: str, members: tuple[int, ...], group: Any, count: int
    ) -> Callable[[int, float], float | None] | None:
        if self.device.type != "cuda" or count * 4 > _LARGEST_QUEUED:
            return None
        return lambda calls, host_s: device_seconds(
            self.torch,
            self.device,
            lambda: self._call(name, members, group, count),
            # Not the call itself, because the root of a broadcast waits for no other rank.
            lambda: self.dist.all_reduce(self.input[:1], group=group),
            calls=calls,
            host_s=host_s,
        )

    def _call(self, name: str, members: tuple[int, ...], group: Any, count: int) -> None:
        dist, share, place = self.dist, count // len(members), members.index(self.rank)
        whole_in, whole_out = self.input[:count], self.output[:count]
        if name == "all_reduce":
            dist.all_reduce(whole_in, group=group)
        elif name == "broadcast":
            dist.broadcast(whole_in, src=members[0], group=group)
        elif name == "all_gather":
            dist.all_gather_into_tensor(whole_out, self.input[:share], group=group)
        elif name == "reduce_scatter":
            dist.reduce_scatter_tensor(self.output[:share], whole_in, group=group)
        elif name == "all_to_all":
            dist.all_to_all_single(whole_out, whole_in, group=group)
        else:
            after, before = members[(place + 1) % len(members)], members[place - 1]
            wanted = [
                dist.P2POp(dist.isend, whole_in, after, group),
                dist.P2POp(dist.irecv, whole_out, before, group),
            ]
            for request in dist.batch_isend_irecv(wanted):
                request.wait()

    def _check(self, name: str, members: tuple[int, ...], group: Any, count: int) -> str | None:
        """Check the collective on fresh data; the buffers are zeros afterwards, so that repeated sums stay zero."""
        n = len(members)
        share, place = count // n, members.index(self.rank)
        self._fill(count)
        self.output[:count] = float("nan")
        self._call(name, members, group, count)
        if name in ("all_reduce", "broadcast"):  # in place
            result = self.input[:count]
        elif name == "reduce_scatter":
            result = self.output[:share]
        else:
            result = self.output[:count]
        # The expected result as runs of one origin: (first element of the result, length, first index, ranks to sum).
        if name == "all_reduce":
            runs = [(0, count, 0, members)]
        elif name == "broadcast":
            runs = [(0, count, 0, members[:1])]
        elif name == "all_gather":
            runs = [(at * share, share, 0, (rank,)) for at, rank in enumerate(members)]
        elif name == "reduce_scatter":
            runs = [(0, share, place * share, members)]
        elif name == "all_to_all":
            runs = [(at * share, share, place * share, (rank,)) for at, rank in enumerate(members)]
        else:
            runs = [(0, count, 0, (members[place - 1],))]
        text = self._wrong(result, runs)
        self.input[:count].zero_()
        self.output[:count].zero_()
        return text

    def _fill(self, count: int) -> None:
        for first in range(0, count, _AT_ONCE):
            length = min(_AT_ONCE, count - first)
            self.input[first : first + length] = pattern(self.torch, length, (self.rank,), self.device, first=first)

    def _wrong(self, found: Any, runs: list[tuple[int, int, int, tuple[int, ...]]]) -> str | None:
        """Compare one part at a time, so that comparing a gigabyte does not need another gigabyte."""
        bad, text = 0, ""
        for start, length, index, ranks in runs:
            for first in range(0, length, _AT_ONCE):
                size = min(_AT_ONCE, length - first)
                part = found[start + first : start + first + size]
                right = pattern(self.torch, size, ranks, self.device, first=index + first)
                is_bad = part != right
                num_bad = int(is_bad.sum())
                if num_bad and not bad:
                    at = int(is_bad.int().argmax())
                    text = f"{part[at]:g} where {right[at]:g} is right"
                bad += num_bad
        return f"{bad} of {len(found)} elements are wrong: {text}" if bad else None
