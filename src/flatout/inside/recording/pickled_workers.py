"""Note what is pickled for each worker of a loader that is spawned: how many bytes, and how long it takes.

In: the calls of `multiprocessing.reduction.dump`, by which a process that is spawned gets its work. Out: the most bytes
and seconds of one worker. A worker that is forked gets the data set without pickling it, and nothing is noted.
"""

from __future__ import annotations

import multiprocessing.reduction
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from flatout.inside.log import LOG

_TARGET = "_worker_loop"  # of torch.utils.data._utils.worker


class PickledWorkers:
    """The largest worker so far."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.seconds = 0.0

    def note(self, num_bytes: int, seconds: float) -> None:
        if num_bytes > self.num_bytes:
            self.num_bytes, self.seconds = num_bytes, seconds

    def facts(self) -> dict[str, Any]:
        """Return the facts for `facts-rank<R>.json`; {} if no worker was pickled."""
        if not self.num_bytes:
            return {}
        return {"loader_pickled_bytes": self.num_bytes, "loader_pickled_s": self.seconds}


PICKLED_WORKERS = PickledWorkers()


def hook_pickled_workers() -> Callable[[], None]:
    """Note the size of each worker that is pickled; return a function that removes the hook."""
    original = multiprocessing.reduction.dump

    @wraps(original)
    def dump(obj: Any, file: Any, *arguments: Any, **options: Any) -> Any:
        before = _position(obj, file)
        if before is None:
            return original(obj, file, *arguments, **options)
        began = time.perf_counter()
        result = original(obj, file, *arguments, **options)
        after = _position(obj, file)
        if after is not None:
            PICKLED_WORKERS.note(after - before, time.perf_counter() - began)
        return result

    multiprocessing.reduction.dump = dump
    return lambda: setattr(multiprocessing.reduction, "dump", original)


def _position(obj: Any, file: Any) -> int | None:
    """Return where the file is, if a loader's worker is written to it; None otherwise, or if it has no position."""
    try:
        target = getattr(obj, "_target", None)
        is_worker = getattr(target, "__name__", None) == _TARGET
        return int(file.tell()) if is_worker else None
    except Exception:  # noqa: BLE001 - an error of ours is never the job's
        LOG.error("pickled workers")
        return None
