"""A training that is killed again and again, and what became of it each time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.checkpoint.ranks import Done, run

NUM_STEPS = 40
EVERY = 2
NUM_RANKS = 2


def train(folder: Path, kind: str, **options: Any) -> Done:
    return run(folder, NUM_STEPS, "--every", str(EVERY), "--pause", "0.02", kind=kind, num_ranks=NUM_RANKS, **options)


class Kills:
    """`whole` is the uninterrupted run.

    A kill comes at a random moment after the first step: of one rank or both, in a step, during a checkpoint's writing,
    or while it is committed. Each start must go on from where the newest checkpoint was.
    """

    def __init__(self, folder: Path, whole: Done, *, kind: str, seed: int) -> None:
        self.folder = folder / "ckpt"
        self.outcomes: list[dict[str, Any]] = []
        self._random = random.Random(seed)
        self._kind = kind
        self._whole = whole

    def kill_once(self) -> dict[str, Any]:
        """Start, and kill. Near its end the training is begun anew, so that there is something to kill."""
        while True:
            if max(self._committed(), default=0) > NUM_STEPS - 10:
                shutil.rmtree(self.folder)
            outcome = self._start_and_kill()
            if -signal.SIGKILL in outcome["codes"]:
                self.outcomes.append(outcome)
                return outcome

    def _start_and_kill(self) -> dict[str, Any]:
        who = self._random.choice(["rank 0", "rank 1", "both"])
        after_s = self._random.uniform(0.0, 0.5)
        moment = self._random.choice(["any", "writing"])
        committed = self._committed()

        def watch(ranks: list[Any], outputs: list[Path]) -> None:
            until = time.monotonic() + 60
            first = f"step {max(committed, default=0) + 1} "
            while time.monotonic() < until and first not in outputs[0].read_text() and ranks[0].is_alive():
                time.sleep(0.002)
            time.sleep(after_s)
            while moment == "writing" and ranks[0].is_alive() and time.monotonic() < until:
                if list(self.folder.glob(".partial-*")):
                    break
                time.sleep(0.0005)
            for number, rank in enumerate(ranks):
                if who in ("both", f"rank {number}"):
                    with suppress(ProcessLookupError):  # it has ended
                        os.kill(rank.pid, signal.SIGKILL)

        done = self._run(watch=watch)
        return {
            "kind": self._kind,
            "who": who,
            "moment": moment,
            "codes": done.codes,
            "start": self._check(done, committed),
            "partial": len(list(self.folder.glob(".partial-*"))),
            "committed": self._committed(),
        }

    def finish(self) -> str:
        """Let it come to its end: "same", if with the same bits as uninterrupted."""
        committed = self._committed()
        done = self._run()
        self._check(done, committed)
        assert done.codes == [0] * NUM_RANKS, (done.codes, done.errors)
        return "same" if done.digest == self._whole.digest else "different"

    def _run(self, **options: Any) -> Done:
        return train(self.folder, self._kind, **options)

    def _check(self, done: Done, committed: set[int]) -> int:
        """It went on from the newest one, with the losses of the uninterrupted run."""
        newest = max(committed, default=0)
        assert done.start == newest, (done.start, newest, done.errors)
        assert done.losses.items() <= self._whole.losses.items()
        assert all("cannot be used" not in error for error in done.errors), done.errors
        kept = self._committed()
        assert max(kept, default=0) >= newest
        return done.start

    def _committed(self) -> set[int]:
        return {int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*")}
