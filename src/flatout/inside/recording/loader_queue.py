"""Count the batches that a loader's workers have made ahead of the training.

In: the iterator of a DataLoader. Out: how many of its batches are ready, or None without workers. While the first steps
compile and initialize, workers fill their queues: the steps after it do not wait, and become slow once the queue is
empty, if loading is slower than the rest. Nothing is taken from the queues.
"""

from __future__ import annotations

from typing import Any

_RECEIVED = 2  # elements of the entry of a batch that has arrived before its turn; other entries have one


def num_ready(iterator: Any) -> int | None:
    """Return how many batches are ready; None if the loader has no workers, or its queues cannot be counted."""
    if not getattr(iterator, "_num_workers", 0):
        return None
    try:
        queues = {id(queue): queue for queue in (iterator._worker_result_queue, iterator._data_queue)}
        waiting = sum(queue.qsize() for queue in queues.values())
        early = sum(len(entry) == _RECEIVED for entry in list(iterator._task_info.values()))
    except (AttributeError, NotImplementedError, OSError, RuntimeError, TypeError):
        return None
    return int(waiting + early)
