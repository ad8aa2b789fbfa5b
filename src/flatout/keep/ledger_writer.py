"""Write the ledger of a run while it runs: each call from `supervise` adds lines."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from flatout.keep.account import Account, AttemptOutcome
from flatout.keep.attempt import AttemptResult
from flatout.keep.hang import Hang
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.ledger import LedgerFile
from flatout.keep.previous_runs import JobStart, PreviousRuns
from flatout.keep.rules import ASKED, Judgement
from flatout.keep.step_breakdown import StepBreakdown
from flatout.keep.supervise import Decision, StepProgress
from flatout.keep.suspensions import Suspensions
from flatout.launch import ExitStatus
from flatout.launch.process_identity import start_ticks

_WRITE_EVERY_S = 2.0


class LedgerWriter:
    def __init__(
        self,
        writer: LedgerFile,
        progress: StepProgress,
        *,
        num_devices: int | None,
        command: str,
        tool: str,
        gpu: str | None,
        node: str | None = None,
        within: StepBreakdown | None = None,
        start: JobStart | None = None,
        job_key: str | None = None,
        earlier: PreviousRuns | None = None,
        goes_on: bool = False,
    ) -> None:
        """Write the first line. `earlier`: what previous starts of the job left, if there were any.

        `goes_on`: the training continues one that a previous start began, or that this run took over.
        """
        self._writer = writer
        self._progress = progress
        self._account = Account(time.monotonic_ns(), num_devices, within)
        self._suspensions = Suspensions()
        self._attempt = 0
        self._told: dict[str, int] = {}
        self._steps = self._steps_told = 0
        self._steps_before = 0
        self._next_write = 0.0
        self._goes_on = goes_on or earlier is not None
        self._reached: tuple[int, int | None] = progress.farthest, progress.saved
        writer.write(
            "run",
            tool_version=tool,
            command=command,
            num_devices=num_devices,
            gpu=gpu,
            node=node if node is not None else os.uname().nodename,
            process=(os.getpid(), start_ticks(os.getpid())),
            job=None if start is None else start.job,
            start=None if start is None else start.number,
            job_key=job_key,
            # Between two starts the job's devices may belong to others, so that time is in no class.
            away_s=None if earlier is None else round(max(time.time() - earlier.last_unix_s, 0.0), 3),
        )

    def attempt_begins(self, attempt: int) -> None:
        self._attempt = attempt
        self._steps_before = self._steps
        self._account.attempt_begins(
            time.monotonic_ns(), is_first=attempt == 0 and not self._goes_on, farthest=self._progress.farthest
        )
        self._writer.write("attempt", attempt=attempt)

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        now_ns = time.monotonic_ns()
        for place, suspended_ns in self._suspensions.look(now_ns, ranks).items():
            self._account.suspends(place, ranks[place].phase, suspended_ns)
        self._add(self._account.look(now_ns, ranks, self._progress.base), ranks)
        if time.monotonic() >= self._next_write:
            self._write()

    def hangs(self, hang: Hang) -> None:
        stacks = {str(rank): text for rank, text in hang.stacks.items()}
        self._writer.write("hang", attempt=self._attempt, says=hang.describe(), late=hang.late, stacks=stacks)

    def attempt_ends(self, attempt: int, done: AttemptResult, judgement: Judgement, decision: Decision) -> None:
        outcome: AttemptOutcome = "hang" if judgement.rule == "hang" else "done" if done.ended.code == 0 else "failed"
        now = time.monotonic_ns()
        if not decision.restarts and not done.ranks:
            self._account.assume(1)
        self._add(
            self._account.attempt_ends(now, done.ranks, self._progress.base, outcome),
            done.ranks,
        )
        self._write()
        if judgement.rule not in ("done", "asked-to-end", "hang", "reverted"):
            self._writer.write(
                "failure",
                attempt=attempt,
                rule=judgement.rule,
                fault=judgement.fault,
                failure_class=judgement.failure_class,
                restart=judgement.restart,
                key=judgement.key,
                says=judgement.says,
                step=done.evidence.step,
                restarts=decision.restarts,
                awaits_peers=judgement.awaits_peers,
            )
        if not decision.restarts:
            self._writer.write("end", code=done.ended.shell_code, why=decision.why, goes_on=decision.goes_on)

    def stops(self, ended: ExitStatus) -> None:
        """Note that the user asked to end the job between two attempts."""
        self._steps_before = self._steps  # this attempt adds no further steps
        self._add(self._account.stops(time.monotonic_ns()), ())
        self._write()
        self._writer.write("end", code=ended.shell_code, why=ASKED, goes_on=True)

    def _add(self, seconds: dict[str, int], ranks: Sequence[HeartbeatSample]) -> None:
        for name, value in seconds.items():
            self._told[name] = self._told.get(name, 0) + value
        self._steps = self._steps_before + max((pulse.num_steps for pulse in ranks), default=0)
        self._reached = self._progress.reached(ranks)

    def _write(self) -> None:
        self._next_write = time.monotonic() + _WRITE_EVERY_S
        if self._told:
            steps_ns, known_ns, not_known = self._account.take_known()
            self._writer.write(
                "seconds",
                attempt=self._attempt,
                num_devices=self._account.num_devices,
                ns=self._told,
                steps=self._steps - self._steps_told,
                steps_ns=steps_ns,
                known_ns=known_ns,
                not_known=not_known,
                reached=self._reached[0],
                saved=self._reached[1],
            )
            self._told = {}
            self._steps_told = self._steps
