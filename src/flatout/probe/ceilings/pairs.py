"""Point to point: the rate in each direction and the round trip of every pair of ranks, each with a known answer.

In rounds of a tournament, so that each rank has one partner at a time and every pair has its turn: other pairs send at
the same time. What arrives must be the sender's own pattern, in which each element depends on the sender's rank and on
its place, so a link that corrupts, or that delivers what another rank sent, is found and named. On GPUs that see each
other, `peer_write` and `peer_read` copy between their memories without NCCL: NVLink or PCIe alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError
from flatout.probe.ceilings.collectives import pattern

SEND, ROUND_TRIP, WRITE, READ = "pair_send", "pair_round_trip", "peer_write", "peer_read"
NAMES = (SEND, ROUND_TRIP, WRITE, READ)
GPU_BYTES, CPU_BYTES, SMALL_BYTES = 64 << 20, 4 << 20, 1 << 10
# Round trips of more ranks are n - 1 rounds of three benchmarks each, which the time of a bench does not allow.
MOST_RANKS = 64
Pair = tuple[int, int]


def tournament(num_ranks: int) -> list[list[Pair]]:
    """Return rounds of disjoint pairs in which every pair of ranks meets once (the circle method)."""
    places = list(range(num_ranks + num_ranks % 2))  # with an odd number, the partner of the last place rests
    rounds = []
    for _ in range(len(places) - 1):
        met = [(places[at], places[-1 - at]) for at in range(len(places) // 2)]
        rounds.append([(min(pair), max(pair)) for pair in met if max(pair) < num_ranks])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


class Pairs:
    """The benchmarks between pairs, of one rank. Every rank creates the same benchmarks in the same order."""

    def __init__(self, torch: Any, device: Any, *, largest: int) -> None:
        self.torch, self.device, self.dist = torch, device, torch.distributed
        self.rank, self.num_ranks = self.dist.get_rank(), self.dist.get_world_size()
        self.is_gpu = device.type == "cuda"
        self.backend = "nccl" if self.is_gpu else "gloo"
        self.group = self.dist.new_group(list(range(self.num_ranks)), backend=self.backend)
        self.size = min(GPU_BYTES if self.is_gpu else CPU_BYTES, largest)
        self.sent = pattern(torch, self.size // 4, (self.rank,), device)
        self.received = torch.zeros(self.size // 4, device=device)
        if self.is_gpu:  # the first call of an NCCL group needs all of its ranks
            self.dist.all_reduce(self.received[:1], group=self.group)

    def benchmarks(self) -> Iterator[Benchmark]:
        for number, pairs in enumerate(tournament(self.num_ranks)):
            mine = next((pair for pair in pairs if self.rank in pair), None)
            for way in ("up", "down"):
                route = mine if mine is None or way == "up" else (mine[1], mine[0])
                yield self._benchmark(SEND, number, way, route, self.size)
            yield self._benchmark(ROUND_TRIP, number, "", mine, SMALL_BYTES)

    def _benchmark(self, name: str, number: int, way: str, route: Pair | None, size: int) -> Benchmark:
        labels = {
            "group": f"round {number} {way}".strip(),
            "backend": self.backend,
            "dtype": "fp32",
            "size": size,
            "members": route or (),
        }
        if route is None:
            return Benchmark(
                name=name, unit="B/s", work=1.0, call=lambda: None, check=lambda: None, checked="", who="group",
                labels=labels,
            )  # fmt: skip
        count = size // 4
        replies = name == ROUND_TRIP
        return Benchmark(
            name=name,
            unit="B/s",
            work=2.0 * size if replies else float(size),
            call=lambda: self._call(route, count, replies=replies),
            check=lambda: self._check(route, count, replies=replies),
            checked="every element that each rank received",
            who="group",
            sync=self._sync,
            labels=labels,
        )

    def _sync(self) -> None:
        if self.is_gpu:
            self.torch.cuda.synchronize(self.device)

    def _call(self, route: Pair, count: int, *, replies: bool) -> None:
        """Send from the first rank of the route to the second, and back if it replies."""
        self._one_way(route, count)
        if replies:
            self._one_way((route[1], route[0]), count)

    def _one_way(self, route: Pair, count: int) -> None:
        source, target = route
        is_sender = self.rank == source
        operation = self.dist.isend if is_sender else self.dist.irecv
        buffer = self.sent[:count] if is_sender else self.received[:count]
        wanted = self.dist.P2POp(operation, buffer, target if is_sender else source, self.group)
        for request in self.dist.batch_isend_irecv([wanted]):
            request.wait()

    def _check(self, route: Pair, count: int, *, replies: bool) -> str | None:
        """Send once, and compare what this rank received with its partner's pattern."""
        self.received[:count] = float("nan")
        self._call(route, count, replies=replies)
        self._sync()
        source, target = route
        if self.rank == source and not replies:
            return None
        partner = target if self.rank == source else source
        right = pattern(self.torch, count, (partner,), self.device)
        return wrong_elements(self.received[:count], right, f"rank {partner} to rank {self.rank}")


def wrong_elements(found: Any, right: Any, route: str) -> str | None:
    """Return how many elements differ, with the first; None if all are right."""
    is_bad = found != right
    num_bad = int(is_bad.sum())
    if not num_bad:
        return None
    at = int(is_bad.int().argmax())
    return f"{route}: {num_bad} of {len(found)} elements are wrong: {found[at]:g} where {right[at]:g} is right"


def peer_benchmarks(torch: Any, device: Any, peers: Sequence[Any], rank: int) -> Iterator[Benchmark]:
    """Yield copies to and from the memory of each other GPU of the host, one GPU after the other.

    `peers`: the devices by local rank, `device` among them. A benchmark's number is the distance to the peer, so that
    all ranks have the same benchmarks.
    """
    place = list(peers).index(device)
    for distance in range(1, len(peers)):
        other = (place + distance) % len(peers)
        for name in (WRITE, READ):
            yield _peer_benchmark(torch, device, peers[other], name, rank, rank - place + other, distance)


def _peer_benchmark(
    torch: Any, device: Any, peer: Any, name: str, rank: int, peer_rank: int, distance: int
) -> Benchmark:
    made: list[Any] = []

    def buffers() -> tuple[Any, Any]:
        """Return the source and the target; a write comes from this GPU, a read from its peer."""
        if not made:
            if device.type == "cuda" and not torch.cuda.can_device_access_peer(device, peer):
                raise CannotMeasureError(f"{device} cannot access the memory of {peer}")
            here = torch.zeros(GPU_BYTES // 4, device=device)
            there = torch.zeros(GPU_BYTES // 4, device=peer)
            made.extend((here, there) if name == WRITE else (there, here))
        return made[0], made[1]

    def call() -> None:
        source, target = buffers()
        target.copy_(source, non_blocking=True)

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.synchronize(peer)

    def check() -> str | None:
        source, target = buffers()
        source_rank, target_rank = (rank, peer_rank) if name == WRITE else (peer_rank, rank)
        source.copy_(pattern(torch, len(source), (source_rank,), source.device))
        target.fill_(float("nan"))
        sync()
        call()
        sync()
        right = pattern(torch, len(target), (source_rank,), target.device)
        return wrong_elements(target, right, f"rank {source_rank} to rank {target_rank}")

    route = (rank, peer_rank) if name == WRITE else (peer_rank, rank)
    return Benchmark(
        name=name,
        unit="B/s",
        work=float(GPU_BYTES),
        call=call,
        check=check,
        checked="every element",
        who="turns",
        sync=sync,
        labels={"size": GPU_BYTES, "backend": "torch", "group": f"distance {distance}", "route": route},
    )
