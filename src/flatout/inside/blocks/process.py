"""Switch settings of the whole process: compute threads, binding to cores, the garbage collector."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import suppress

import torch

from flatout.inside.blocks.switcher import Switcher
from flatout.inside.collector import COLLECTOR
from flatout.inside.patches.bind_cores import cores_to_bind, local_rank_and_size
from flatout.inside.patches.garbage_collection import ALL, FULL_EVERY, YOUNG


class Threads(Switcher):
    """The number of threads that compute one operation. A pool that grew keeps its threads, which then sleep."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._before = 0

    def apply(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(self._number)

    def undo(self) -> None:
        torch.set_num_threads(self._before)


class BoundCores(Switcher):
    """The cores on which all threads of this process and of its children may run."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self._by = by
        self._before: dict[int, set[int]] = {}
        self._allowed: set[int] = set()

    def apply(self) -> None:
        rank_and_size = local_rank_and_size(os.environ)
        if rank_and_size is None:
            self.problem = "the local rank and the number of ranks on this host are unknown"
            return
        cores = cores_to_bind(self._by, *rank_and_size)
        if isinstance(cores, str):
            self.problem = cores
            return
        self._allowed = os.sched_getaffinity(0)
        self._before = {}
        for thread in _threads():
            with suppress(OSError):  # the thread has ended
                self._before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, cores)

    def undo(self) -> None:
        """Restore the cores of each thread; threads that began since get those of the main thread."""
        for thread in _threads():
            with suppress(OSError):
                os.sched_setaffinity(thread, self._before.get(thread, self._allowed))


def _threads() -> Iterator[int]:
    """Yield the threads of this process and of its children, such as the workers of loaders."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid is not None)]
    for process in processes:
        with suppress(OSError):  # the child has ended
            yield from map(int, os.listdir(f"/proc/{process}/task"))


class CollectionOff(Switcher):
    """No collections, or those of all ranks at the same steps.

    Nothing is collected at a switch, so the collections in the baseline's blocks continue as if the blocks between them
    had not been. `freeze` is not offered, because taking it back needs a full
    collection, which puts off those that it is compared with.
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every  # 0: never
        self._num_steps = 0

    def apply(self) -> None:
        if COLLECTOR.is_off:
            self.problem = "the garbage collector is already turned off"
            return
        if not COLLECTOR.is_automatic():
            self.problem = "the script turns the garbage collector off itself"
            return
        COLLECTOR.turn_off()

    def undo(self) -> None:
        if self.problem is None:
            COLLECTOR.turn_on()

    def step_ended(self) -> None:
        if self.problem is not None:
            return
        if gc.isenabled():
            self.problem = "the script turns the garbage collector on itself"
            return
        self._num_steps += 1
        if self._every and self._num_steps % self._every == 0:
            is_full = self._num_steps % (FULL_EVERY * self._every) == 0
            gc.collect(ALL if is_full else YOUNG)


def threads(*, number: int) -> Switcher:
    return Threads(number)


def bind_cores(*, by: str) -> Switcher:
    return BoundCores(by)


def garbage_collection(*, how: str, after: int = 0, every: int = 0) -> Switcher:
    del after  # the blocks begin after the warm-up
    if how == "freeze":
        raise ValueError("frozen objects cannot be taken back without a full collection")
    return CollectionOff(every if how == "together" else 0)
