"""Note whether the script sets torch's number of threads itself, which the environment does not change then."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch


class ThreadCounts:
    """`install` hooks `torch.set_num_threads` and returns what removes the hook."""

    def __init__(self) -> None:
        self.is_set_by_script = False

    def install(self) -> Callable[[], None]:
        original = torch.set_num_threads

        @wraps(original)
        def set_num_threads(count: int) -> None:
            original(count)
            self.is_set_by_script = True

        torch.set_num_threads = set_num_threads

        def undo() -> None:
            if torch.set_num_threads is set_num_threads:
                torch.set_num_threads = original

        return undo


THREAD_COUNTS = ThreadCounts()
