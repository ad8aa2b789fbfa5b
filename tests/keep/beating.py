"""Processes of a job that never were: heartbeats written by the code that runs inside ranks, on a clock of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.inside.liveness import beat as inside_beat
from flatout.inside.liveness.beat import CHECKPOINT, DATA, Beat

PHASES = {"data": DATA, "checkpoint": CHECKPOINT}


class Clock:
    def __init__(self, start_ns: int = 1_000_000_000_000) -> None:
        self.ns = start_ns

    def __call__(self) -> int:
        return self.ns


class Rank:
    """A rank whose time is its own: `spends` moves it on."""

    def __init__(self, folder: Path, rank: int, world_size: int, clock: Clock, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir(exist_ok=True)
        patch.setattr(inside_beat, "_now", clock)
        self.clock = clock
        self.ns = clock.ns
        own = folder / f"of-{rank}"
        own.mkdir()
        self.beat = Beat(own)
        self.beat.is_rank(rank, world_size)
        # One process wrote them all: each gets a name of its own.
        self.path = folder / f"beat-{os.uname().nodename}-{rank}"
        (own / f"beat-{self.beat.name}").rename(self.path)

    def spends(self, what: str, ns: int) -> None:
        self.clock.ns = self.ns
        if what == "evaluation":
            self.beat.evaluates(True)
        before = self.beat.enter(PHASES[what]) if what in PHASES else 0
        self.clock.ns += ns
        if what in PHASES:
            self.beat.leave(before)
        if what == "evaluation":
            self.beat.evaluates(False)
        self.ns = self.clock.ns

    def steps(self) -> None:
        self.clock.ns = self.ns
        self.beat.stepped()
