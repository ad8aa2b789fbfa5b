"""Decode the blocks of one file in several processes.

In: an iterator of blocks, which this process reads and decompresses. Out: the same `Decoded` as from one process.
Blocks go to the workers, and columns come back, through slots of shared memory; pipes only say which slot is ready. A
slow worker slows the reading, so memory use does not grow with the size of the file.
"""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from flatout.read.columns import BlockDecoder
from flatout.read.decoded import Columns, Decoded, Dictionaries
from flatout.read.event_text import BLOCK_BYTES
from flatout.records.events import COLUMNS

_SLOTS_PER_WORKER = 3  # one is being decoded while the others are filled
_SLOT_BYTES = 2 * BLOCK_BYTES
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class WorkerLostError(Exception):
    """A worker process ended before its work was done, for example for lack of memory."""


def can_fork() -> bool:
    """Whether workers can be forked, in milliseconds; other start methods take longer than reading most files."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def decode_in_processes(blocks: Iterator[bytes], num_workers: int) -> Decoded:
    """Decode the blocks. Raises WorkerLostError; errors of reading pass through."""
    memory = mmap.mmap(-1, num_workers * _SLOTS_PER_WORKER * _SLOT_BYTES)
    workers = _start(num_workers, memory)
    try:
        return _Dispatch(workers, memory).run(blocks)
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise WorkerLostError from error
    finally:
        for worker in workers:
            worker.stop()
        memory.close()


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, process: BaseProcess, tasks: Connection, results: Connection, slots: list[int]) -> None:
        self.process = process
        self.tasks = tasks
        self.results = results
        self.free_slots = slots

    def stop(self) -> None:
        self.tasks.close()
        self.results.close()
        self.process.terminate()  # the process has already ended unless an error occurred
        self.process.join()
        self.process.close()


class _Dispatch:
    def __init__(self, workers: list[_Worker], memory: mmap.mmap) -> None:
        self._workers = workers
        self._memory = memory
        self._pieces: dict[int, tuple[int, Columns]] = {}  # block: (decoder, columns)

    def run(self, blocks: Iterator[bytes]) -> Decoded:
        own = BlockDecoder()
        for number, block in enumerate(blocks):
            if len(block) > _SLOT_BYTES:  # one event larger than a slot
                self._pieces[number] = (len(self._workers), own.decode(block))
                continue
            self._receive(timeout_s=0)
            while not any(worker.free_slots for worker in self._workers):
                self._receive(timeout_s=None)
            idlest = max(self._workers, key=lambda worker: len(worker.free_slots))
            slot = idlest.free_slots.pop()
            self._memory[slot * _SLOT_BYTES : slot * _SLOT_BYTES + len(block)] = block
            idlest.tasks.send((number, slot, len(block)))
        for worker in self._workers:
            worker.tasks.send(None)
        decoders = [*(self._finish(worker, number) for number, worker in enumerate(self._workers)), own.finish()]
        ordered = [self._pieces[number] for number in range(len(self._pieces))]
        return Decoded(
            pieces=[columns for _, columns in ordered],
            decoder_of_piece=[decoder for decoder, _ in ordered],
            decoders=decoders,
        )

    def _receive(self, timeout_s: float | None) -> None:
        """Take the results that are available; without a timeout, wait for at least one."""
        ready = wait([worker.results for worker in self._workers], timeout_s)
        for number, worker in enumerate(self._workers):
            if worker.results in ready:
                self._take(worker, number, worker.results.recv())

    def _take(self, worker: _Worker, number: int, result: tuple[int, int, int | Columns]) -> None:
        block, slot, columns = result
        if isinstance(columns, int):
            columns = _columns_in(self._memory, slot, num_rows=columns)
        self._pieces[block] = (number, columns)
        worker.free_slots.append(slot)

    def _finish(self, worker: _Worker, number: int) -> Dictionaries:
        while not isinstance(result := worker.results.recv(), Dictionaries):
            self._take(worker, number, result)
        return result


def _start(num_workers: int, memory: mmap.mmap) -> list[_Worker]:
    context = multiprocessing.get_context("fork")
    pipes = [(context.Pipe(duplex=False), context.Pipe(duplex=False)) for _ in range(num_workers)]
    ends = [end for pair in pipes for pipe in pair for end in pipe]
    workers = []
    for number, ((tasks, tasks_in), (results_out, results)) in enumerate(pipes):
        with suppress(OSError):  # best effort; the system's limit may be lower
            fcntl.fcntl(results.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)
        others = [end for end in ends if end not in (tasks, results)]
        process = context.Process(target=_work, args=(memory, tasks, results, others), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns about forking while other threads run. The child only parses text and fills arrays, and
            # takes no lock that one of numpy's threads could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        slots = list(range(number * _SLOTS_PER_WORKER, (number + 1) * _SLOTS_PER_WORKER))
        workers.append(_Worker(process, tasks_in, results_out, slots))
    for (tasks, _), (_, results) in pipes:
        tasks.close()
        results.close()
    return workers


def _work(memory: mmap.mmap, tasks: Connection, results: Connection, others: list[Connection]) -> None:
    """Run a worker. `others` are pipe ends that it must close, or else the other ends would never see them close."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # the parent may handle them in its own way, which ends in a traceback
        signal.signal(number, signal.SIG_DFL)
    for end in others:
        end.close()
    decoder = BlockDecoder()
    view = memoryview(memory)
    task: Any
    while (task := tasks.recv()) is not None:
        number, slot, length = task
        columns = decoder.decode(view[slot * _SLOT_BYTES : slot * _SLOT_BYTES + length])
        in_slot = _put_columns(memory, slot, columns)
        results.send((number, slot, len(columns["kind"]) if in_slot else columns))
    results.send(decoder.finish())


def _put_columns(memory: mmap.mmap, slot: int, columns: Columns) -> bool:
    """Write columns over their text; return False if they do not fit, which only happens with very short events."""
    if sum(columns[column].nbytes for column in COLUMNS) > _SLOT_BYTES:
        return False
    position = slot * _SLOT_BYTES
    for column, dtype in COLUMNS.items():
        values = columns[column]
        np.frombuffer(memory, dtype, len(values), position)[:] = values
        position += values.nbytes
    return True


def _columns_in(memory: mmap.mmap, slot: int, num_rows: int) -> Columns:
    columns = {}
    position = slot * _SLOT_BYTES
    for column, dtype in COLUMNS.items():
        columns[column] = np.frombuffer(memory, dtype, num_rows, position).copy()
        position += columns[column].nbytes
    return columns
