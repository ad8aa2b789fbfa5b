"""One rank that measures: `python -m flatout.nccl_tuner.rank`, with a `RankPlan` as JSON on standard input.

In: the plan of one start. Out: lines of JSON on standard output, the same on every rank: progress, and the samples of
all ranks for each round, so that whoever started a rank decides alike. In a round, each case is measured with each
candidate in turn, and the order of the candidates changes from case to case and from round to round, so that no
candidate is always first and a drift of the machine meets all of them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from flatout.nccl_tuner.backends import Communicator, make_backend
from flatout.nccl_tuner.plan import RankPlan
from flatout.records.nccl_tuning import Case, GroupShape, NcclCandidate

_SAMPLE_S = 0.005  # a repetition takes at least about this long
_MAX_CALLS = 50
_LIMIT = timedelta(minutes=5)


class RankMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line from a rank. Samples are (candidate, case, round, seconds), candidates by index."""

    samples: tuple[tuple[int, int, int, float], ...] = ()
    wrong: tuple[tuple[int, int, str], ...] = ()  # candidate, case, problem
    failed: tuple[tuple[int, str], ...] = ()  # candidates that could not be used
    num_nodes: tuple[int, ...] = ()
    software: str = ""
    current: int | None = None  # the candidate that is used now
    is_done: bool = False


class _Rank:
    def __init__(self, plan: RankPlan, torch: Any) -> None:
        self.plan = plan
        self.dist = torch.distributed
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        store = _meeting(self.dist, plan, self.rank, self.size)
        self.dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=_LIMIT)
        self.control = self.dist.group.WORLD
        self.backend = make_backend(plan, torch, self.rank, local_rank)
        self.hosts = self.gathered(socket.gethostname())
        self.open: dict[tuple[int, int], Communicator | None] = {}  # by candidate and shape; None: not in a group
        self.failed: dict[int, str] = {}
        self.num_calls: dict[int, int] = {}

    def gathered(self, value: Any) -> list[Any]:
        of_ranks: list[Any] = [None] * self.size
        self.dist.all_gather_object(of_ranks, value, group=self.control)
        return of_ranks

    def agreed(self, value: Any) -> Any:
        """Return the first rank's value, on every rank."""
        box = [value]
        self.dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def run(self) -> None:
        began = time.monotonic()
        candidates, cases = self.plan.start.candidates, self.plan.work.cases
        self._open_all(candidates)
        wrong = self._check_all(candidates, cases)
        _write(
            RankMessage(
                wrong=tuple(wrong),
                failed=tuple(self.failed.items()),
                num_nodes=tuple(self._num_nodes(shape) for shape in self.plan.work.shapes),
                software=self.backend.software(),
            )
        )
        usable = [
            n for n in range(len(candidates)) if n not in self.failed and n not in {index for index, _, _ in wrong}
        ]
        self._count_calls(usable, cases)
        for number in range(self.plan.first_round, self.plan.first_round + self.plan.num_rounds):
            if self.agreed(time.monotonic() - began > self.plan.time_s):
                break
            _write(RankMessage(samples=tuple(self._round(number, usable, cases))))
        _write(RankMessage(is_done=True))

    def _open_all(self, candidates: tuple[NcclCandidate, ...]) -> None:
        """Open the communicators of all candidates, each on all ranks before the next."""
        for index, candidate in enumerate(candidates):
            self._tell_current(index)
            problem = ""
            for number, shape in enumerate(self.plan.work.shapes):
                mine = self._mine(shape)
                try:
                    opened = self.backend.communicator(candidate, shape.groups, mine)
                except (RuntimeError, ValueError, AttributeError) as error:
                    problem, opened = _one_line(error), None
                self.open[index, number] = opened
            problems = [text for text in self.gathered(problem) if text]
            if problems:
                self.failed[index] = problems[0]

    def _check_all(self, candidates: tuple[NcclCandidate, ...], cases: tuple[Case, ...]) -> list[tuple[int, int, str]]:
        """Check each candidate on each case, and return the wrong results of all ranks."""
        found = []
        for index in range(len(candidates)):
            if index in self.failed:
                continue
            self._tell_current(index)
            for number, case in enumerate(cases):
                communicator = self.open[index, case.shape]
                if communicator is not None and (problem := communicator.wrong(case)) is not None:
                    found.append((index, number, problem))
        of_ranks = [
            (index, number, f"rank {rank}: {problem}")
            for rank, problems in enumerate(self.gathered(found))
            for index, number, problem in problems
        ]
        first: dict[int, tuple[int, int, str]] = {}
        for entry in of_ranks:
            first.setdefault(entry[0], entry)
        return list(first.values())

    def _count_calls(self, usable: list[int], cases: tuple[Case, ...]) -> None:
        """Choose how often each case is called per sample, by the default's time after a first call."""
        for number, case in enumerate(cases):
            communicator = self.open[usable[0], case.shape] if usable else None
            seconds = 0.0
            if communicator is not None:
                communicator.seconds(case, 1)
                seconds = communicator.seconds(case, 1)
            slowest = max(self.gathered(seconds))
            self.num_calls[number] = max(1, min(_MAX_CALLS, round(_SAMPLE_S / max(slowest, 1e-7))))

    def _round(self, number: int, usable: list[int], cases: tuple[Case, ...]) -> list[tuple[int, int, int, float]]:
        mine = []
        for place, case in enumerate(cases):
            for index in rotated(usable, number + place):
                self._tell_current(index)
                self.dist.barrier(group=self.control)
                communicator = self.open[index, case.shape]
                seconds = 0.0
                if communicator is not None:
                    seconds = communicator.seconds(case, self.num_calls[place])
                mine.append((index, place, number, seconds))
        of_ranks = self.gathered(mine)
        return [(*samples[0][:3], max(sample[3] for sample in samples)) for samples in zip(*of_ranks, strict=True)]

    def _mine(self, shape: GroupShape) -> tuple[int, ...]:
        return next((ranks for ranks in shape.groups if self.rank in ranks), ())

    def _num_nodes(self, shape: GroupShape) -> int:
        return max(len({self.hosts[rank] for rank in ranks}) for ranks in shape.groups)

    def _tell_current(self, index: int) -> None:
        """Say which candidate is used next: if it hangs or ends the ranks, they are started again without it."""
        _write(RankMessage(current=index))


def _write(message: RankMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _meeting(dist: Any, plan: RankPlan, rank: int, num_ranks: int) -> Any:
    """Return the store in which the ranks meet: a file, or that of a launcher, which outlives a start of the ranks."""
    if plan.meeting_file is not None:
        return dist.FileStore(plan.meeting_file, num_ranks)
    is_launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        num_ranks,
        is_master=rank == 0 and not is_launchers,
        timeout=_LIMIT,
    )
    return dist.PrefixStore(plan.meeting, store)


def rotated(items: list[int], by: int) -> list[int]:
    """Return the items in another order for each number: rotated, and backwards for every other turn."""
    if not items:
        return []
    first = by % len(items)
    order = [*items[first:], *items[:first]]
    is_backwards = by // len(items) % 2 == 1
    return order[::-1] if is_backwards else order


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def main() -> int:
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=RankPlan)
    import torch

    torch.set_num_threads(1)
    Path(plan.folder).mkdir(parents=True, exist_ok=True)
    rank = _Rank(plan, torch)
    rank.run()
    # The groups are left to the end of the process: to destroy them can wait for other ranks, and gloo may abort.
    rank.dist.barrier(group=rank.control)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
