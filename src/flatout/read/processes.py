"""Find the process and the host of a trace, and refuse a file with the events of several ranks.

In: the columns of a table, its threads and its name. Out: the process id and the host, or InputError. A file with
several ranks results from merging traces for a viewer. The correlation IDs that join launches with kernels are then no
longer unique, so the file cannot be split again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.schema import is_kind
from flatout.records.events import Kind

# host_4711.1694128201545.pt.trace.json: the name that `tensorboard_trace_handler` gives by default
_HOST_AND_PROCESS = re.compile(r"(?:^|[/\\])([^/\\]+)_(\d+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?$")
MIN_SHARE_OF_OPERATORS = 0.1  # of a process that is a rank
_MAX_SHOWN = 4


def process_of(
    columns: dict[str, NDArray[Any]], threads: Sequence[tuple[int | str, int | str]], path: str
) -> str | None:
    """Return the process that made the operators in the file (or, if there are none, the runtime calls).

    Return None without both. Raises InputError if at least two processes have a large share of them.
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
        shown = ", ".join(sorted(ranks)[:_MAX_SHOWN]) + (", ..." if len(ranks) > _MAX_SHOWN else "")
        raise InputError(
            f"{path} must be the trace of one process, but has the events of {len(ranks)} (pid {shown}):"
            " traces of several ranks were merged",
            hint="pass the traces as the profiler wrote them, one file per rank",
        )
    return ranks[0]


def host_in_name(name: str, process: str | None) -> str | None:
    """Return the host in a file's name, if the process id that follows it is that of the trace; None otherwise."""
    match = _HOST_AND_PROCESS.search(name)
    return match[1] if match is not None and match[2] == process else None
