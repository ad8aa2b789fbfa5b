"""Attempts of a job, one after the other, while its failures deserve it and the budget lasts.

In: a function that gives the words of the next attempt, and the budget. Out: how the last attempt ended. What a failure
is, `rules` says; the same failure at the same step twice is the user's bug, and another attempt would end there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.keep.attempt import Attempt, Watched
from flatout.keep.beats import Pulse
from flatout.keep.hang import Hang
from flatout.keep.rules import Judgement, judge
from flatout.launch import Ended, pause

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    restarts: bool
    why: str  # one line, for the user
    pause_s: float = 0.0


class Book(Protocol):
    """Who keeps the ledger."""

    def attempt_begins(self, attempt: int) -> None: ...
    def look(self, ranks: Sequence[Pulse]) -> None: ...
    def hangs(self, hang: Hang) -> None: ...
    def attempt_ends(self, attempt: int, done: Attempt, judgement: Judgement, decision: Decision) -> None: ...
    def stops(self, ended: Ended) -> None: ...


class Restarts:
    """The budget, and what the attempts so far have taught."""

    def __init__(self, most: int, *, others_go_on: bool = False) -> None:
        """`others_go_on`: the launcher is elastic, and the job can do without this host."""
        self._most = most
        self._others_go_on = others_go_on
        self.num = 0
        self._seen: set[tuple[str, int | None]] = set()
        self._farthest = -1
        self._num_in_vain = 0

    def decide(self, judgement: Judgement, step: int | None) -> Decision:
        if judgement.rule in ("done", "asked-to-end"):
            return Decision(restarts=False, why=judgement.says)
        failure = (judgement.key, step)
        if step is not None and failure in self._seen:  # of a job whose steps are not seen, it may be another one
            at = "before the first step" if not step else f"at step {step}"
            return Decision(
                restarts=False, why=f"the same failure {at} for the second time is the job's own bug: not started again"
            )
        self._seen.add(failure)
        if not judgement.restarts:
            return Decision(restarts=False, why=f"starting it again would not help ({judgement.rule})")
        if judgement.leaves_host and self._others_go_on:
            return Decision(restarts=False, why="this host is left out: the launcher is elastic, and the others go on")
        if self.num >= self._most:
            spent = (
                f"all {self._most} restarts are spent" if self._most else "no restart was asked for (--max-restarts)"
            )
            return Decision(restarts=False, why=spent)
        self._num_in_vain = 0 if step is not None and step > self._farthest else self._num_in_vain + 1
        self._farthest = max(self._farthest, -1 if step is None else step)
        self.num += 1
        pause_s = min(_FIRST_PAUSE_S * 2**self._num_in_vain, _LONGEST_PAUSE_S)
        return Decision(restarts=True, why=f"restart {self.num} of {self._most}", pause_s=pause_s)


class Progress:
    """Which step of the whole training a rank is at, over attempts that each count from their own start."""

    def __init__(self) -> None:
        self._saved: int | None = None  # the step of the last complete checkpoint
        self.farthest = 0
        self.is_known = True

    def base(self, pulse: Pulse) -> int | None:
        """Steps made before this process: as its optimizer counts, else by what was saved and loaded."""
        if pulse.base_step is not None:
            return pulse.base_step
        return self._saved if pulse.has_loaded else 0

    def step(self, pulse: Pulse) -> int | None:
        base = self.base(pulse)
        return None if base is None else base + pulse.num_steps

    def ends(self, ranks: Sequence[Pulse]) -> None:
        """An attempt has ended: what it has reached and saved."""
        for pulse in ranks:
            base = self.base(pulse)
            if base is None:
                self.is_known = False
                continue
            self.farthest = max(self.farthest, base + pulse.num_steps)
            if pulse.checkpoint_step is not None:
                self._saved = base + pulse.checkpoint_step


def keep_alive(
    watched: Watched,
    restarts: Restarts,
    progress: Progress,
    *,
    next_words: Callable[[int, str | None], Sequence[str]],
    environment: Mapping[str, str],
    state: Path,
    book: Book,
    say: Callable[[str], object],
) -> Ended:
    """`next_words(attempt, bad_host)`: an attempt's command. `state`: a folder of our own, for one of each attempt."""
    attempt, bad_host = 0, None
    while True:
        words = next_words(attempt, bad_host)
        folder = state / f"attempt-{attempt}"
        folder.mkdir()
        book.attempt_begins(attempt)
        done = watched.run(words, environment, folder, reached=progress.step)
        judgement = judge(done.evidence)
        decision = restarts.decide(judgement, done.evidence.step)
        book.attempt_ends(attempt, done, judgement, decision)
        progress.ends(done.ranks)
        if judgement.rule not in ("done", "asked-to-end"):
            fault = {"user": " (the job's own)", "machine": " (the machine's)", "network": " (the network's)"}
            if judgement.rule != "hang":  # told when it was found
                say(f"attempt {attempt + 1} failed: {judgement.says}{fault.get(judgement.fault, '')}")
            say(decision.why)
        if done.left:
            say(f"the command has ended, and has left running, unwatched from here on: process {', '.join(done.left)}")
        if not decision.restarts:
            return done.ended
        bad_host = done.evidence.host if judgement.leaves_host else None
        stopped = pause(decision.pause_s)
        if stopped is not None:
            book.stops(stopped)
            return stopped
        attempt += 1
