"""Run attempts of a job, one after the other, while restarting can help and the budget lasts.

In: a function that returns the command of the next attempt, and the budget. Out: how the last attempt ended. `rules`
classifies failures. The same failure twice at the same step is the user's bug: another attempt would hit it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.keep.attempt import AttemptResult, AttemptRunner
from flatout.keep.hang import Hang
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.peer_board import PeerBoard
from flatout.keep.previous_runs import PreviousRuns
from flatout.keep.rules import START_UP_S, Judgement, judge
from flatout.launch import Ended, pause

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# the wait for the launcher's agents on other nodes; torchrun waits as long
_PEERS_PATIENCE_S, _PEERS_PAUSE_S = 600.0, 2.0
_FAILS_AGAIN = 3  # times in a row, on a host that the job can do without
_HOST_FAILS_AGAIN = 2  # times in a row, if another host can take its place
_BY_SIGNAL = 128  # a shell's exit code for a process ended by a signal is this plus the signal's number


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    restarts: bool
    why: str  # one line, for the user
    pause_s: float = 0.0
    goes_on: bool = False  # the job continues when its scheduler starts it again


class LedgerLike(Protocol):
    """The interface of the ledger writer."""

    def attempt_begins(self, attempt: int) -> None: ...
    def look(self, ranks: Sequence[HeartbeatSample]) -> None: ...
    def hangs(self, hang: Hang) -> None: ...
    def attempt_ends(self, attempt: int, done: AttemptResult, judgement: Judgement, decision: Decision) -> None: ...
    def stops(self, ended: Ended) -> None: ...


class Restarts:
    """The budget of restarts, and the results of the attempts so far."""

    def __init__(
        self,
        most: int,
        *,
        others_go_on: bool = False,
        earlier: PreviousRuns | None = None,
        machine_code: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allow `most` restarts.

        With `others_go_on` the launcher is elastic, and the job can continue without this host. `earlier` are the same
        job's previous runs, with which it shares the budget. `machine_code` is the exit code that a scheduler takes for
        a fault of the machine, so that it starts the job on another one.
        """
        self._most = most
        self.machine_code = machine_code
        self._others_go_on = others_go_on
        self.num = 0 if earlier is None else earlier.num_restarts
        self._seen: set[tuple[str, int | None]] = set() if earlier is None else set(earlier.failures)
        self._farthest = -1
        self._num_in_vain = 0
        self._num_own = 0  # consecutive failures of this host
        self._has_started = earlier is not None  # if so, a failure may be temporary rather than a mistake of the user
        self._failed_at_start = ""  # the key of the failure
        self._awaits_since: float | None = None
        self._clock = clock

    def decide(self, judgement: Judgement, step: int | None, *, silent_s: float | None = None) -> Decision:
        """Decide whether to restart.

        `step` counts the whole training; `silent_s` is how long the attempt ran, if no rank was seen.
        """
        if judgement.rule in ("done", "asked-to-end"):
            return Decision(restarts=False, why=judgement.says, goes_on=judgement.rule != "done")
        if judgement.awaits_peers and self._most:
            self._awaits_since = self._clock() if self._awaits_since is None else self._awaits_since
            if self._clock() - self._awaits_since < _PEERS_PATIENCE_S:
                return Decision(
                    restarts=True, why="waits for the other nodes: no restart is used", pause_s=_PEERS_PAUSE_S
                )
            step = None  # and a repeated wait is not a repeated failure of the job
        else:
            self._awaits_since = None
        failure = (judgement.key, step)
        is_of_others = judgement.is_of_peers and self._others_go_on  # the launcher excludes those
        if (
            step is not None and failure in self._seen and not is_of_others
        ):  # if steps are not seen, it may be another failure
            at = "before the first step" if not step else f"at step {step}"
            return Decision(
                restarts=False, why=f"the same failure {at} for the second time is the job's own bug: not started again"
            )
        self._seen.add(failure)
        if self._fails_to_start_again(judgement, silent_s):
            why = "the same failure for the second time, before a rank was seen, is the job's own: not started again"
            return Decision(restarts=False, why=why)
        if not judgement.restarts:
            return Decision(restarts=False, why=f"starting it again would not help ({judgement.rule})")
        self._num_own = 0 if judgement.is_of_peers else self._num_own + 1
        if self._others_go_on and (judgement.leaves_host or self._num_own >= _FAILS_AGAIN):
            why = (
                "this host is excluded" if judgement.leaves_host else f"this host failed {self._num_own} times in a row"
            )
            return Decision(restarts=False, why=f"{why}: the launcher is elastic, and the others continue")
        if judgement.leaves_host and self.machine_code is not None:
            why = f"the machine is at fault: exit code {self.machine_code} asks the scheduler for another one"
            return Decision(restarts=False, why=why, goes_on=True)
        if self.num >= self._most:
            spent = f"all {self._most} restarts are used" if self._most else "no restart was asked for (--max-restarts)"
            return Decision(restarts=False, why=spent)
        self._num_in_vain = 0 if step is not None and step > self._farthest else self._num_in_vain + 1
        self._farthest = max(self._farthest, -1 if step is None else step)
        self.num += 1
        pause_s = min(_FIRST_PAUSE_S * 2**self._num_in_vain, _LONGEST_PAUSE_S)
        return Decision(restarts=True, why=f"restart {self.num} of {self._most}", pause_s=pause_s)

    def _fails_to_start_again(self, judgement: Judgement, silent_s: float | None) -> bool:
        """Whether the job failed twice alike at its start, by the launcher's exit code or an exception before torch.

        A job that once ran for longer can fail to start for a temporary reason, such as an unreachable file server.
        """
        is_told_little = judgement.rule in ("exit-code", "exception")
        is_at_start = is_told_little and silent_s is not None and silent_s < START_UP_S
        self._has_started = self._has_started or not is_at_start
        before, self._failed_at_start = self._failed_at_start, judgement.key
        return not self._has_started and before == judgement.key


class StepProgress:
    """The step of the whole training that each rank has reached, over attempts that count their steps from zero."""

    def __init__(self, earlier: PreviousRuns | None = None) -> None:
        self.saved = None if earlier is None else earlier.saved  # the step of the last complete checkpoint
        self.farthest = 0 if earlier is None else earlier.farthest
        self.is_known = True

    def base(self, pulse: HeartbeatSample) -> int | None:
        """Return the steps made before this process: from its optimizer's count, else from the steps loaded."""
        if pulse.base_step is not None:
            return pulse.base_step
        return self.saved if pulse.has_loaded else 0

    def step(self, pulse: HeartbeatSample) -> int | None:
        base = self.base(pulse)
        return None if base is None else base + pulse.num_steps

    def reached(self, ranks: Sequence[HeartbeatSample]) -> tuple[int, int | None]:
        """Return the step of the training, and the last step that was saved, if the attempt ended now."""
        farthest, saved = self.farthest, self.saved
        for pulse in ranks:
            base = self.base(pulse)
            if base is not None:
                farthest = max(farthest, base + pulse.num_steps)
                saved = saved if pulse.checkpoint_step is None else base + pulse.checkpoint_step
        return farthest, saved

    def ends(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Record the steps that an ended attempt has reached and saved."""
        self.is_known = self.is_known and all(self.base(pulse) is not None for pulse in ranks)
        self.farthest, self.saved = self.reached(ranks)


class BadHost(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_sure: bool  # the machine is at fault; otherwise the host failed twice in a row, for any reason


class _Hosts:
    def __init__(self) -> None:
        self._last: tuple[str | None, int] = (None, 0)

    def bad(self, host: str | None, judgement: Judgement) -> BadHost | None:
        """Return the host that should be excluded if another can take its place."""
        if judgement.is_of_peers or host is None:
            return None
        self._last = (host, self._last[1] + 1 if self._last[0] == host else 1)
        if judgement.leaves_host or self._last[1] >= _HOST_FAILS_AGAIN:
            return BadHost(name=host, is_sure=judgement.leaves_host)
        return None


def keep_alive(
    watched: AttemptRunner,
    restarts: Restarts,
    progress: StepProgress,
    *,
    next_words: Callable[[int, BadHost | None], Sequence[str]],
    environment: Mapping[str, str],
    state: Path,
    book: LedgerLike,
    say: Callable[[str], object],
    nodes: PeerBoard,
) -> Ended:
    """Run attempts of `next_words(attempt, bad_host)` until the job is done or given up; return how the last one ended.

    `state` is a folder in which each attempt gets a folder. `nodes` are the job's other nodes, each with its own
    `flatout run`, as torchrun has an agent on each.
    """
    hosts = _Hosts()
    attempt, bad_host = 0, None
    while True:
        words = next_words(attempt, bad_host)
        folder = state / f"attempt-{attempt}"
        folder.mkdir()
        book.attempt_begins(attempt)
        nodes.begins(attempt)
        began_s = time.monotonic()
        done = watched.run(words, environment, folder, reached=progress.step)
        ran_s = time.monotonic() - began_s
        judgement = judge(done.evidence)
        is_failure = judgement.rule not in ("done", "asked-to-end")
        if is_failure and judgement.is_of_peers and (reason := nodes.reason()) is not None:
            judgement = msgspec.structs.replace(judgement, says=f"{judgement.says}; {reason}")
        is_silent = not done.ranks and done.ended.shell_code < _BY_SIGNAL
        decision = restarts.decide(judgement, done.evidence.step, silent_s=ran_s if is_silent else None)
        if is_failure and (given_up := nodes.given_up()) is not None:
            decision = Decision(restarts=False, why=given_up)
        if is_failure:
            nodes.fails(None if judgement.is_of_peers else judgement.says)
        if is_failure and not decision.restarts:
            nodes.gives_up(decision.why)
        book.attempt_ends(attempt, done, judgement, decision)
        progress.ends(done.ranks)
        if is_failure:
            fault = {"user": " (the job's own)", "machine": " (the machine's)", "network": " (the network's)"}
            if judgement.rule != "hang":  # a hang was reported when it was detected
                say(f"attempt {attempt + 1} failed: {judgement.says}{fault.get(judgement.fault, '')}")
            say(decision.why)
        if done.left:
            say(f"the command exited and left running, unmonitored: process {', '.join(done.left)}")
        if not decision.restarts:
            is_moved = judgement.leaves_host and decision.goes_on and restarts.machine_code is not None
            return (
                msgspec.structs.replace(done.ended, code=restarts.machine_code, signal=None) if is_moved else done.ended
            )
        bad_host = hosts.bad(done.evidence.host, judgement)
        stopped = pause(decision.pause_s)
        if stopped is not None:
            book.stops(stopped)
            return stopped
        attempt += 1
