"""`Checkpointer` saves the state of a training run in the background, and resumes from the last good checkpoint.

    ckpt = Checkpointer("ckpt", model=model, optimizer=optimizer, scheduler=scheduler, every_s=600)
    start = ckpt.resume()
    for step in range(start, num_steps):
        ...
        ckpt.step(step + 1)
    ckpt.close()

In: the live objects, and the same calls in the same order on every rank. Out: folders as described in `store`. A step
is the number of completed steps. In the foreground, a call only copies the state to host memory and exchanges one short
message with the other ranks; `background` uses no collectives, and coordinates the commit through files.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from flatout.checkpoint.arguments import check_numbers, checked_step, every_s_of_environment, training_of
from flatout.checkpoint.background import Background, PendingCheckpoint
from flatout.checkpoint.loader_position import LoaderPosition
from flatout.checkpoint.peers import Peers
from flatout.checkpoint.preemption import PreemptionHandler, die
from flatout.checkpoint.problems import CheckpointError, DamagedError, as_damage
from flatout.checkpoint.reader import Saved
from flatout.checkpoint.share import Item, Sharing, items_of
from flatout.checkpoint.state import Collected, collect, destinations, model_tensors, restore
from flatout.checkpoint.store import Store
from flatout.checkpoint.timer import CheckpointTimer
from flatout.checkpoint.unsaved_loader import watch_for_unsaved_loader

LOG = logging.getLogger("flatout.checkpoint")
_ENDING_S = 10.0  # limit of the wait for parts when an error ends the training
_METADATA = {"format": "pt", "written_by": "flatout.checkpoint"}


class Checkpointer:
    """Saves and resumes a training run; the module's docstring has an example.

    `optimizer` is one optimizer, or a mapping of several by name; `state` maps names to further objects that have
    state_dict and load_state_dict. `every` is in steps, `every_s` in seconds; without both, `step` saves every
    FLATOUT_CHECKPOINT_EVERY_S seconds, or never if that is unset. `local` is a second, faster folder on each host
    (/dev/shm, NVMe): every checkpoint is written to it, and only every `shared_every`-th also to the shared folder.
    The last `keep` checkpoints are kept, and those whose step is a multiple of `keep_every`. `on_error`: "warn" and
    continue, or "raise" at the next call. `timeout_s` limits how long ranks wait for each other.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        data: Any = None,
        state: Mapping[str, Any] | None = None,
        every: int | None = None,
        every_s: float | None = None,
        local: str | os.PathLike[str] | None = None,
        shared_every: int = 1,
        keep: int = 3,
        keep_every: int | None = None,
        when_busy: Literal["wait", "skip"] = "wait",
        on_error: Literal["warn", "raise"] = "warn",
        timeout_s: float = 600.0,
    ) -> None:
        check_numbers(every=every, shared_every=shared_every, keep=keep, keep_every=keep_every)
        self._training = training_of(model, optimizer, scheduler, data, state)
        self._every, self._every_s = every, every_s_of_environment() if every_s is None else every_s
        self._shared_every = shared_every if local else 1
        self._when_busy, self._on_error = when_busy, on_error
        self._peers = Peers(timeout_s)
        self._sharing = Sharing(self._peers)
        rank, world_size = self._peers.rank, self._peers.world_size
        self._shared = Store(Path(folder), rank=rank, members=range(world_size))
        self._local = Store(Path(local), rank=rank, members=self._peers.host_ranks) if local else None
        self._pid = os.getpid()
        self._pace = CheckpointTimer()
        self._num_saved = 0
        self._newest = 0  # step that was last saved or resumed from
        self._has_begun = False  # the folder's content has been checked
        self._is_closed = False
        self.last_saved: int | None = None  # the step of the last checkpoint that this rank knows to be committed
        self._background = Background(
            self._shared,
            keep=keep,
            keep_every=keep_every,
            timeout_s=timeout_s,
            warn=self._warn,
            on_saved=self._saved if self._peers.is_leader else lambda step: None,
        )
        try:
            self._peers.together(self._open)
        except BaseException:
            self._release()
            raise
        self._background.start()
        if data is None and self._peers.is_leader:
            self._end_watch = watch_for_unsaved_loader(self._training.stateful.values(), self._warn)
        else:
            self._end_watch = lambda: None
        self._farewell = PreemptionHandler(rank, world_size, self._background.flush)
        atexit.register(self.close)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._background.ends_within(None if kind is None else _ENDING_S)
        self.close()

    # Saving.

    def step(self, step: int) -> bool:
        """Save if a checkpoint is due, and return whether it was saved. Call this after each step.

        If all ranks received SIGTERM, this saves and then ends the process by that signal.
        """
        if self._farewell.is_last(step):
            self.save(step, wait=True)
            self.close()
            die()
        if self._every is not None:
            return step % self._every == 0 and self.save(step)
        if self._every_s is None or not self._pace.is_asking(step):
            return False
        if self._pace.is_due(step):
            return self.save(step)
        proposed = self._peers.gather(self._pace.propose(step, self._every_s, is_saved=False))
        self._pace.tell(step, proposed[0])
        return False

    def save(self, step: int, *, wait: bool = False) -> bool:
        """Save now. This returns as soon as the state is copied or, with `wait`, once it is on the disk.

        Returns False if the checkpoint was skipped: an earlier one is still being written and `when_busy` is "skip", or
        memory is short. With `wait`, returns True only if the checkpoint is complete in every folder that it was due
        in; otherwise returns False, or raises CheckpointError if `on_error` is "raise". If one rank waits, all do.
        """
        began = time.perf_counter()
        step = checked_step(step)
        self._begin()
        collected: Collected | None = None
        items: list[Item] = []
        aliases: dict[str, str] = {}
        error: CheckpointError | None = None
        try:
            self._check_order(step)
            collected = collect(self._training)
            items, aliases = items_of(collected)
        except CheckpointError as caught:
            error = caught
        told = self._tell(step, items, error, wait=wait)
        if error is not None:
            raise error
        if any(one["changed"] for one in told):
            self._sharing.compare(items)
        if self._when_busy == "skip" and any(one["busy"] for one in told):
            self._warn(f"step {step} is not saved: an earlier checkpoint is still being written")
            return False
        self._num_saved += 1
        self._newest = step
        is_shared = self._num_saved % self._shared_every == 0
        token = told[0]["token"]
        contents = self._contents(items)
        stores = [store for store in self._stores() if is_shared or store is self._local]
        buffer = self._background.take_buffer()
        try:
            buffer.fill(list(contents.values()), _METADATA)
        except (RuntimeError, MemoryError) as problem:  # no host memory, or it cannot be pinned
            self._background.gives_up(step, token, stores, buffer, problem)
            self._is_on_the_disk(step, token, told)
            return False
        job = PendingCheckpoint(
            step=step,
            token=token,
            buffer=buffer,
            files=list(contents),
            record={
                "world_size": self._peers.world_size,
                "values": collected.values if collected else {},
                "aliases": aliases,
            },
            stall_s=time.perf_counter() - began,
            stores=stores,
            began=began,
        )
        self._background.writes(job)
        return self._is_on_the_disk(step, token, told)

    def _is_on_the_disk(self, step: int, token: str, told: Sequence[Any]) -> bool:
        """Wait for the checkpoint if any rank does, and return whether every rank completed it; else return True."""
        if not any(one["wait"] for one in told):
            return True
        self._background.wait()
        answers = self._peers.gather([self._background.is_complete(token), self.last_saved, self._last_failure()])
        self.last_saved = answers[0][1]
        if all(is_complete for is_complete, _, _ in answers):
            return True
        if self._on_error == "raise":
            reasons = [reason for _, _, reason in answers if reason]
            self._background.failures.clear()  # every rank raises this one
            raise CheckpointError(reasons[0] if reasons else f"step {step} was not saved")
        return False

    def _last_failure(self) -> str:
        failures = self._background.failures
        return failures[-1][1] if failures else ""

    def wait(self) -> None:
        """Wait until all saved checkpoints have been written."""
        self._background.wait()

    def close(self) -> None:
        """Write the pending checkpoints and release the folder. This is also called at the end of the process."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._end_watch()
        self._farewell.close()
        atexit.unregister(self.close)
        self._background.close()
        data = self._training.stateful.get("data")
        if isinstance(data, LoaderPosition):
            data.close()
        self._release()
        failures = self._background.failures
        if failures and self._on_error == "raise" and not self._background.is_ending:
            raise CheckpointError(failures[0][1])

    # Resuming.

    def resume(self) -> int:
        """Restore the training from the last good checkpoint and return its step, or 0 if there is none.

        A damaged checkpoint is reported and the one before it is used. Raises CheckpointError if the checkpoint is from
        a different training run.
        """
        self.wait()
        refused: list[str] = []
        for step, store in self._candidates():
            try:
                self._peers.together(partial(self._check, store, step))
                saved = self._peers.together(partial(self._read, store, step))
            except CheckpointError as error:
                refused.append(f"step {step} in {store.folder} cannot be used: {error}")
                continue
            try:
                self._load(saved, step)
            except DamagedError as error:  # what it changed is overwritten by the checkpoint before it
                refused.append(f"step {step} in {store.folder} cannot be used: {error}")
                continue
            self._background.resumes_from(store, step)
            if self._peers.is_leader:
                for line in refused:
                    self._warn(f"{line}; resuming from step {step} instead")
            self._start_from(step)
            return step
        if refused:
            raise CheckpointError(
                f"no checkpoint can be used: {'; '.join(refused)}",
                hint="to start from scratch, use another folder or remove this one",
            )
        self._start_from(0)
        return 0

    def _candidates(self) -> list[tuple[int, Store]]:
        """Return the checkpoints, newest first, local before shared for the same step; identical on all ranks."""
        shared = self._peers.together(lambda: self._shared.steps() if self._peers.is_leader else [])
        usable = self._peers.together(lambda: self._usable_local_steps(self._local) if self._local else [])
        told = self._peers.gather({"shared": shared, "local": usable})
        local = set(told[0]["local"]).intersection(*(one["local"] for one in told))
        found = [(step, 1, self._local) for step in local] + [(step, 0, self._shared) for step in told[0]["shared"]]
        return [(step, store) for step, _, store in sorted(found, key=lambda one: one[:2], reverse=True) if store]

    def _usable_local_steps(self, local: Store) -> list[int]:
        """Return the steps in the local folder that were written by exactly the ranks now on this host."""
        usable = []
        for step in local.steps():
            with suppress(CheckpointError):
                manifest = local.manifest(step)
                if (manifest["ranks"], manifest["world_size"]) == (self._peers.host_ranks, self._peers.world_size):
                    usable.append(step)
        return usable

    def _check(self, store: Store, step: int) -> None:
        ranks = self._peers.host_ranks if store is self._local else range(self._peers.world_size)
        store.check(step, list(ranks).index(self._peers.rank), len(ranks))

    def _read(self, store: Store, step: int) -> Saved:
        with as_damage(store.path(step).name):
            saved = Saved(store.path(step), store.records(step), self._peers.rank)
            saved.check_covers(model_tensors(self._training))
        return saved

    def _load(self, saved: Saved, step: int) -> None:
        rank, world_size = self._peers.rank, self._peers.world_size

        def load() -> None:
            if saved.world_size != world_size and (name := saved.own_parameter()):
                raise CheckpointError(
                    f"`{name}` differed among the {saved.world_size} ranks that saved it, now there are {world_size}",
                    hint=f"continue with {saved.world_size} ranks, or shard it with DTensors",
                )
            with as_damage(saved.path.name):
                tensors = saved.read(destinations(self._training, saved.trained()))
            restore(
                self._training,
                saved.values,
                tensors,
                is_own=saved.has_own,
                has_gradients=saved.world_size == world_size,
            )

        self._peers.together(load)
        if saved.world_size != world_size and saved.values.get("gradients") and self._peers.is_leader:
            self._warn(
                f"step {step} was saved between micro-batches by {saved.world_size} ranks, and now there are"
                f" {world_size}: the gradients that were accumulated are lost"
            )
        if not saved.has_own:
            self._warn(f"rank {rank} was not there when step {step} was saved: its random state is new")
        data = self._training.stateful.get("data")
        is_divided_anew = isinstance(data, LoaderPosition) and data.divides_among_ranks
        if saved.world_size != world_size and data is not None and not is_divided_anew and self._peers.is_leader:
            self._warn(
                f"step {step} was saved by {saved.world_size} ranks, and now there are {world_size}: each rank has the"
                " data position of the rank with the same number, or of rank 0"
            )

    def _start_from(self, step: int) -> None:
        for store in self._stores():
            if store.is_leader:
                store.refuse_after(step, is_forgetting=store is self._local)
        self._has_begun = True
        self._newest = step
        self._pace.begin(step)
        self.last_saved = step or None

    def _begin(self) -> None:
        """Refuse a folder that holds checkpoints of another training run."""
        if self._has_begun:
            return
        newest = self._peers.together(self._newest_steps)
        of_all_ranks = list(chain.from_iterable(self._peers.gather(newest)))
        if of_all_ranks:
            step, folder = max(of_all_ranks)
            raise CheckpointError(
                f"{folder} has checkpoints up to step {step}, and resume() was not called",
                hint="call it before the first step, or use another folder",
            )
        self._has_begun = True

    def _newest_steps(self) -> list[tuple[int, str]]:
        """Return the newest step in each folder that this rank leads, with the folder."""
        leading = [store for store in self._stores() if store.is_leader]
        return [(step, str(store.folder)) for store in leading for step in store.steps()[:1]]

    # Messages between the ranks.

    def _check_order(self, step: int) -> None:
        """Refuse a step below the newest: its checkpoint would immediately be the first to be removed."""
        if step < self._newest:
            raise CheckpointError(
                f"step {step} cannot be saved after step {self._newest}, but steps must be saved in increasing order",
                hint="begin the loop at the step that resume() returns, or go back with resume()",
            )

    def _tell(self, step: int, items: Sequence[Item], error: CheckpointError | None, *, wait: bool) -> list[Any]:
        """Exchange and return the ranks' status before a checkpoint; raise errors that concern all ranks on each."""
        failures = self._background.take_failures()
        statuses = self._peers.gather(
            {
                "step": step,
                "wait": wait,
                "token": secrets.token_hex(4),
                "changed": self._sharing.fingerprint(items),
                "busy": self._background.is_busy,
                "failures": failures,
                "error": str(error) if error else None,
                "next": self._pace.propose(step, self._every_s, is_saved=True) if self._every_s else None,
                "last_saved": self.last_saved,
            }
        )
        of_first_rank = statuses[0]
        if of_first_rank["next"]:
            self._pace.tell(step, of_first_rank["next"])
        self.last_saved = of_first_rank["last_saved"]
        failures_of_ranks = [failure for status in statuses for failure in status["failures"]]
        self._background.given_up |= {token for token, _ in failures_of_ranks}
        _require_one_step(statuses)
        if error is None:  # this rank raises its own error itself
            _raise_first_error(statuses)
        if failures_of_ranks and self._on_error == "raise":
            _, reason = failures_of_ranks[0]
            raise CheckpointError(reason)
        return statuses

    def _contents(self, items: Sequence[Item]) -> dict[str, dict[str, Item]]:
        """Return the items that this rank writes, by file name and by key in the file."""
        shared, local = {}, {}
        for item in items:
            if self._sharing.own(item):
                shared[f"rank.{item.name}"] = replace(item, is_own=True)
            elif self._sharing.is_written_here(item):
                shared[item.name] = item
            elif self._local and self._sharing.is_written_here(item, is_local=True):
                local[item.name] = item
        name = f"rank{self._peers.rank:05d}"
        contents = {f"{name}.safetensors": shared}
        if self._local:
            contents[f"{name}-local.safetensors"] = local
        return contents

    # Helpers.

    def _saved(self, step: int) -> None:
        self.last_saved = step

    def _stores(self) -> list[Store]:
        return [self._local, self._shared] if self._local else [self._shared]

    def _release(self) -> None:
        for store in self._stores():
            store.close()

    def _open(self) -> None:
        for store in self._stores():
            try:
                store.open()
            except OSError as error:
                raise CheckpointError(
                    f"{store.folder} cannot be written to: {(error.strerror or str(error)).lower()}",
                    hint="pass a folder that this user can write to on every host",
                ) from error

    def _warn(self, text: str) -> None:
        where = f"rank {self._peers.rank}: " if self._peers.world_size > 1 else ""
        LOG.warning("flatout.checkpoint: %s%s", where, text)


def _require_one_step(statuses: Sequence[dict[str, Any]]) -> None:
    steps = sorted({status["step"] for status in statuses})
    if len(steps) > 1:
        raise CheckpointError(f"all ranks must save the same step, but got {steps}")


def _raise_first_error(statuses: Sequence[dict[str, Any]]) -> None:
    for rank, status in enumerate(statuses):
        if status["error"]:
            raise CheckpointError(f"rank {rank}: {status['error']}")
