"""Find the process and the host of a trace, and the ranks of a file with the events of several.

In: the columns of a table, its threads and its name. Out: the process id and the host, or `SeveralRanksError`. A file
with several ranks results from merging traces for a viewer. It can be split if the names of all its processes and
devices contain the rank, or if it has no GPU events, whose processes are devices. Otherwise the correlation IDs that
join launches with kernels are no longer unique, and the file is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.ranks import rank_in_name
from flatout.read.schema import is_kind
from flatout.records.events import GPU_WORK, Kind

# host_4711.1694128201545.pt.trace.json: the name that `tensorboard_trace_handler` gives by default
_HOST_AND_PROCESS = re.compile(r"(?:^|[/\\])([^/\\]+)_(\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?$")
MIN_SHARE_OF_OPERATORS = 0.1  # of a process that is a rank
_MAX_SHOWN = 4
_Threads = Sequence[tuple[int | str, int | str]]


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one rank in a file of several: of the processes that name it, of one process or of one device."""

    rank: int | None  # None: the file does not say it
    process: str | None = None  # None: all processes and devices whose name contains the rank
    device: int | None = None  # of a process with several; None: the file has no such processes
    by: str | None = None  # what distinguishes the ranks of the file, if it is neither of these
    left_out: str | None = None  # what the file has apart from the ranks, said with one of them

    @property
    def name(self) -> str:
        if self.device is not None:
            return f"device {self.device}" if self.process is None else f"process {self.process}, device {self.device}"
        return f"rank {self.rank}" if self.process is None else f"process {self.process}"

    def has(self, process: int | str) -> bool:
        if self.process is not None:
            return str(process) == self.process
        return rank_in_name(str(process)) == self.rank


class SeveralRanksError(InputError):
    """The file has the events of several ranks; `parts` can be read one at a time."""

    def __init__(self, message: str, parts: tuple[RankPart, ...]) -> None:
        super().__init__(message)
        self.parts = parts


def process_of(columns: dict[str, NDArray[Any]], threads: _Threads, path: str) -> str | None:
    """Return the process that made the operators in the file (or, if there are none, the runtime calls).

    Return None without both. If at least two processes have a large share of them, raises SeveralRanksError if the file
    says which event belongs to which rank, and otherwise InputError.
    """
    is_operator = is_kind(columns["kind"], Kind.CPU_OP)
    if not is_operator.any():
        is_operator = is_kind(columns["kind"], Kind.RUNTIME)
    thread = columns["thread"][is_operator]
    num_operators: Counter[str] = Counter()
    for code, count in zip(*np.unique(thread, return_counts=True), strict=True):
        num_operators[str(threads[code][0])] += int(count)
    if not num_operators:
        return None
    limit = MIN_SHARE_OF_OPERATORS * num_operators.total()
    ranks = [process for process, count in num_operators.most_common() if count >= limit]
    if len(ranks) > 1:
        raise _several_ranks(columns, threads, sorted(ranks), path)
    return ranks[0]


def _several_ranks(columns: dict[str, NDArray[Any]], threads: _Threads, ranks: list[str], path: str) -> InputError:
    shown = ", ".join(ranks[:_MAX_SHOWN]) + (", ..." if len(ranks) > _MAX_SHOWN else "")
    message = (
        f"{path} must be the trace of one process, but has the events of {len(ranks)} (pid {shown}):"
        " traces of several ranks were merged"
    )
    parts = _parts(columns, threads, ranks)
    if parts is not None:
        return SeveralRanksError(message, parts)
    return InputError(
        f"{message}, and nothing says which GPU events belong to which rank",
        hint="pass the traces as the profiler wrote them, one file per rank",
    )


def _parts(columns: dict[str, NDArray[Any]], threads: _Threads, ranks: list[str]) -> tuple[RankPart, ...] | None:
    """Return the ranks of the file; None if it does not say which event belongs to which rank."""
    is_gpu_work = is_kind(columns["kind"], *GPU_WORK)
    named = [rank_in_name(process) for process in ranks]
    devices = {str(threads[code][0]) for code in np.unique(columns["thread"][is_gpu_work]).tolist()}
    named_devices = {rank_in_name(device) for device in devices}
    if None not in named and named_devices <= set(named):
        return tuple(RankPart(rank=rank) for rank in sorted(rank for rank in set(named) if rank is not None))
    if not devices:
        return tuple(RankPart(rank=None, process=process) for process in ranks)
    return None


def host_in_name(name: str, process: str | None) -> str | None:
    """Return the host in a file's name, if the process id that follows it is that of the trace; None otherwise."""
    match = _HOST_AND_PROCESS.search(name)
    return match[1] if match is not None and match[2] == process else None
