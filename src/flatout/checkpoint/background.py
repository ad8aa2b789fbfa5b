"""The thread that writes a rank's checkpoints: the rank's part in each folder and, if it is the leader, the commit.

In: `PendingCheckpoint`s, each with a copy of the state in host memory. Out: folders as described in `store`, and
failures, which are kept until the ranks exchange them. The thread uses no collectives: it learns of the other ranks'
parts from their files.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from flatout.checkpoint.notes import Event, SaveNotes
from flatout.checkpoint.snapshot import Buffer
from flatout.checkpoint.store import Store

_LATE_S = 30.0  # how long the leader keeps a failed checkpoint for ranks that still write to it


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint on its way to the disk."""

    step: int
    token: str  # identifies this attempt to save; the same on all ranks
    buffer: Buffer
    files: list[str]  # one name for each part of the buffer; the first part is for the shared folder
    record: dict[str, Any]
    stall_s: float  # time for which the foreground was blocked
    stores: list[Store]
    began: float


class Background:
    """The writer thread. `shared` is the folder of all ranks; `on_saved` is called in it with each committed step."""

    def __init__(
        self,
        shared: Store,
        *,
        keep: int,
        keep_every: int | None,
        timeout_s: float,
        warn: Callable[[str], object],
        on_saved: Callable[[int], object],
    ) -> None:
        self._shared = shared
        self._keep, self._keep_every, self._timeout_s = keep, keep_every, timeout_s
        self._warn, self._on_saved = warn, on_saved
        self._notes = SaveNotes()
        self.failures: deque[list[str]] = deque()  # token and reason, until the ranks have exchanged them
        self.given_up: set[str] = set()  # tokens of checkpoints that will lack a part
        self._last_complete = ""  # token of the last checkpoint that this rank completed in every folder
        self._ends_at: float | None = None  # if an error ends the training: when to stop waiting for parts
        # The last used buffer comes first, so that the second has no memory until it is needed.
        self._free: queue.LifoQueue[Buffer] = queue.LifoQueue()
        for _ in range(2):
            self._free.put(Buffer())
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._write_all, name="flatout-checkpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether no further state can be copied until a pending checkpoint has been written."""
        return self._free.empty()

    @property
    def is_ending(self) -> bool:
        return self._ends_at is not None

    def take_buffer(self) -> Buffer:
        """Wait for a free buffer and return it; the caller returns it through `writes` or `gives_up`."""
        return self._free.get()

    def writes(self, job: PendingCheckpoint) -> None:
        for store in job.stores:
            if store.is_leader:
                self._note("begun", store, job.step)
        self._jobs.put(partial(self._write, job))

    def resumes_from(self, store: Store, step: int) -> None:
        if store.is_leader:
            self._note("resumed", store, step)

    def gives_up(self, step: int, token: str, stores: Sequence[Store], buffer: Buffer, problem: BaseException) -> None:
        """Record a checkpoint for which this rank could not copy its state."""
        self._free.put(buffer)
        for store in stores:
            self._note("failed", store, step, _line(problem))
        self._fail(token, f"step {step} was not saved: {_line(problem)}")
        self._jobs.put(partial(self._give_up, step, token, stores, _line(problem)))

    def wait(self) -> None:
        """Wait until all saved checkpoints have been written."""
        self._jobs.join()

    def is_complete(self, token: str) -> bool:
        """Whether, after `wait`, this is the last checkpoint and, to this rank's knowledge, complete in every folder.

        The leader of a folder knows this for all of its ranks, and every other rank for its own part.
        """
        return self._last_complete == token

    def flush(self, limit_s: float) -> None:
        """Wait as `wait` does, but at most `limit_s`, and not for ranks that no longer write their part."""
        self.ends_within(limit_s / 2)
        deadline = time.monotonic() + limit_s
        while self._jobs.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)

    def ends_within(self, limit_s: float | None) -> None:
        """Limit the wait for the parts of other ranks; None: the default limit."""
        self._ends_at = None if limit_s is None else time.monotonic() + limit_s

    def close(self) -> None:
        """Write the pending checkpoints, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    # These methods run on the thread.

    def _write_all(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    return
                job()
            except Exception as error:  # noqa: BLE001 - without this thread the training would wait forever
                self._fail("", f"a checkpoint was not saved: {_line(error)}")
            finally:
                self._jobs.task_done()

    def _write(self, job: PendingCheckpoint) -> None:
        """Write to each folder, even if writing to the other folder fails."""
        try:
            written = [store for store in job.stores if self._attempt(store, job, self._write_part)]
        finally:
            self._free.put(job.buffer)
        is_good = bool(written)
        is_complete = len(written) == len(job.stores)
        for store in job.stores:
            if store.is_leader and not (store in written and self._attempt(store, job, self._commit)):
                is_good = is_good and store not in written
                is_complete = False
                self._discard(store, job.step, job.token)
        if is_complete:
            self._last_complete = job.token
        if is_good:
            self._on_saved(job.step)

    def _give_up(self, step: int, token: str, stores: Sequence[Store], reason: str) -> None:
        """Mark a checkpoint for which this rank has no copy as failed, and discard it."""
        for store in stores:
            store.fail(step, token, reason)
            if store.is_leader:
                store.log({"step": step, "outcome": "failed", "reason": reason})
                self._discard(store, step, token)

    def _discard(self, store: Store, step: int, token: str) -> None:
        store.discard(step, token, late_s=_LATE_S if self._ends_at is None else 0.5)

    def _attempt(
        self, store: Store, job: PendingCheckpoint, function: Callable[[Store, PendingCheckpoint], None]
    ) -> bool:
        try:
            function(store, job)
        except Exception as error:  # noqa: BLE001 - the training continues after any error, and reports it
            reason = f"step {job.step} was not saved to {store.folder}: {_line(error)}"
            store.fail(job.step, job.token, _line(error))
            self._note("failed", store, job.step, _line(error))
            if store.is_leader:
                store.log({"step": job.step, "outcome": "failed", "reason": _line(error)})
            self._fail(job.token, reason)
            return False
        return True

    def _write_part(self, store: Store, job: PendingCheckpoint) -> None:
        copying_s = job.buffer.wait()
        num_parts = 1 if store is self._shared else len(job.files)
        parts = dict(zip(job.files[:num_parts], job.buffer.parts, strict=False))
        record = job.record | {
            "stall_s": round(job.stall_s + copying_s, 6),  # upper bound: queued GPU work can hide the host's share
            "tensors": {name: part.index for name, part in parts.items()},
        }
        store.write(job.step, job.token, {name: part.buffers() for name, part in parts.items()}, record)

    def _commit(self, store: Store, job: PendingCheckpoint) -> None:
        manifest = store.commit(
            job.step, job.token, timeout_s=self._timeout_s, is_given_up=lambda: self._is_given_up(job.token)
        )
        store.log(
            {
                "step": job.step,
                "outcome": "committed",
                "bytes": sum(one["bytes"] for one in manifest["files"].values()),
                "stall_s": manifest["stall_s"],
                "until_committed_s": round(time.perf_counter() - job.began, 6),
            }
        )
        self._note("committed", store, job.step)
        with suppress(OSError):
            store.prune(self._keep, self._keep_every)

    def _note(self, event: Event, store: Store, step: int, reason: str = "") -> None:
        self._notes.add(event, folder=store.folder, is_local=store is not self._shared, step=step, reason=reason)

    def _is_given_up(self, token: str) -> bool:
        return token in self.given_up or (self._ends_at is not None and time.monotonic() > self._ends_at)

    def _fail(self, token: str, reason: str) -> None:
        self.failures.append([token, reason])
        self._warn(reason)

    def take_failures(self) -> list[list[str]]:
        """Return the failures that the ranks have not exchanged yet, each once."""
        taken = []
        while self.failures:
            taken.append(self.failures.popleft())
        return taken


def _line(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
