"""Run attempts of a job, one after the other, while restarting can help and the budget lasts.

In: a function that returns the command of the next attempt, and the budget. Out: how the last attempt ended. `rules`
classifies failures. The same failure twice at the same step is the user's bug: another attempt would hit it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.keep.attempt import AttemptResult, AttemptRunner
from flatout.keep.hang import Hang
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.peer_board import PeerBoard
from flatout.keep.previous_runs import PreviousRuns
from flatout.keep.rules import ASKED, START_UP_S, Judgement, judge
from flatout.launch import ExitStatus, pause

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# the wait for the launcher's agents on other nodes; torchrun waits equally long
_PEERS_PATIENCE_S, _PEERS_PAUSE_S = 600.0, 2.0
_FAILS_AGAIN = 3  # number of consecutive failures, on a host that the job does not need
_HOST_FAILS_AGAIN = 2  # number of consecutive failures, if another host can replace this host
_FAULTS = {
    "user": " (a fault in the job itself)",
    "machine": " (a machine fault)",
    "network": " (a network fault)",
}
_BY_SIGNAL = 128  # a shell's exit code for a process ended by a signal is this plus the signal's number


# An attempt that was ended at a checkpoint, to continue without the changes of a tuning; it uses up no restart.
REVERTED = Judgement(rule="reverted", fault="nobody", restart="yes", says="restarted without the changes of the tuning")


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
    def stops(self, ended: ExitStatus) -> None: ...


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
        job's previous runs, with which it shares the budget. `machine_code` is the exit code that a scheduler
        interprets as a machine fault, so that it starts the job on another machine.
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
        """Decide whether to restart. `step` is of the whole training; `silent_s` is set if no rank was seen."""
        if judgement.rule == REVERTED.rule:
            return Decision(restarts=True, why=judgement.says)
        if judgement.rule in ("done", "asked-to-end"):
            return Decision(restarts=False, why=judgement.says, goes_on=judgement.rule != "done")
        if self._waits_for_peers(judgement):
            return Decision(
                restarts=True, why="waiting for the other nodes, without using up a restart", pause_s=_PEERS_PAUSE_S
            )
        if judgement.awaits_peers and self._most:
            step = None  # a repeated wait is not a repeated failure of the job
        why_not = (
            self._why_repeated(judgement, step)
            or self._why_never_started(judgement, silent_s)
            or _why_in_vain(judgement)
            or self._why_without_this_host(judgement)
        )
        if why_not is not None:
            return Decision(restarts=False, why=why_not)
        if judgement.leaves_host and self.machine_code is not None:
            why = f"the machine is at fault: exit code {self.machine_code} asks the scheduler for another machine"
            return Decision(restarts=False, why=why, goes_on=True)
        if self.num >= self._most:
            spent = f"all {self._most} restarts are used up" if self._most else "no restart requested (--max-restarts)"
            return Decision(restarts=False, why=spent)
        return self._restart(step)

    def _restart(self, step: int | None) -> Decision:
        """Use one restart, after a pause that grows while attempts do not get further than earlier attempts."""
        gets_farther = step is not None and step > self._farthest
        self._num_in_vain = 0 if gets_farther else self._num_in_vain + 1
        self._farthest = max(self._farthest, -1 if step is None else step)
        self.num += 1
        pause_s = min(_FIRST_PAUSE_S * 2**self._num_in_vain, _LONGEST_PAUSE_S)
        return Decision(restarts=True, why=f"restart {self.num} of {self._most}", pause_s=pause_s)

    def _waits_for_peers(self, judgement: Judgement) -> bool:
        """Whether the launcher's agents on other nodes are still awaited, for ten minutes at most."""
        if not judgement.awaits_peers or not self._most:
            self._awaits_since = None
            return False
        if self._awaits_since is None:
            self._awaits_since = self._clock()
        return self._clock() - self._awaits_since < _PEERS_PATIENCE_S

    def _why_repeated(self, judgement: Judgement, step: int | None) -> str | None:
        """Return why a failure is the job's own bug if it was seen at this step before."""
        failure = (judgement.key, step)
        was_seen = failure in self._seen
        self._seen.add(failure)
        is_of_others = judgement.is_of_peers and self._others_go_on  # the launcher excludes those
        if not was_seen or step is None or is_of_others:  # if steps are not seen, it may be another failure
            return None
        at = "before the first step" if not step else f"at step {step}"
        return f"the same failure {at} occurred for the second time, so it is a bug in the job: not restarted"

    def _why_never_started(self, judgement: Judgement, silent_s: float | None) -> str | None:
        """Return why the job itself is at fault if it failed twice alike at its start.

        Its start is known by the launcher's exit code or an exception before torch. A job that once ran for longer can
        fail to start for a temporary reason, such as an unreachable file server.
        """
        is_told_little = judgement.failure_class in ("job", "unknown") and judgement.rule not in ("killed", "signal")
        is_at_start = is_told_little and silent_s is not None and silent_s < START_UP_S
        self._has_started = self._has_started or not is_at_start
        before, self._failed_at_start = self._failed_at_start, judgement.key
        if self._has_started or before != judgement.key:
            return None
        return "the same failure occurred twice before any rank started, so it is a bug in the job: not restarted"

    def _why_without_this_host(self, judgement: Judgement) -> str | None:
        """Return why an elastic job continues without this host."""
        self._num_own = self._num_own + 1 if _may_be_the_hosts(judgement) else 0
        if not self._others_go_on:
            return None
        if judgement.leaves_host:
            return "this host is excluded: the launcher is elastic, and the others continue"
        if self._num_own < _FAILS_AGAIN:
            return None
        return f"this host failed {self._num_own} times in a row: the launcher is elastic, and the others continue"


def _why_in_vain(judgement: Judgement) -> str | None:
    return None if judgement.restarts else f"a restart would not help ({judgement.rule})"


def _may_be_the_hosts(judgement: Judgement) -> bool:
    """Whether the host can be at fault: a user's mistake or a lost peer is not evidence against the host."""
    return not judgement.is_of_peers and judgement.fault in ("machine", "unknown")


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
    is_sure: bool  # the machine is at fault; otherwise it failed twice in a row, and the cause is unknown


class SuspectedHosts:
    """The hosts on which attempts failed: one that may be at fault twice in a row is not used again."""

    def __init__(self) -> None:
        self._last: tuple[str | None, int] = (None, 0)

    def bad(self, host: str | None, judgement: Judgement) -> BadHost | None:
        """Return the host that should be excluded if another can take its place."""
        if host is None or judgement.is_of_peers:
            return None
        if not _may_be_the_hosts(judgement):
            self._last = (None, 0)
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
    settles: Callable[[Judgement, AttemptResult], Decision | None] = lambda judgement, done: None,
) -> ExitStatus:
    """Run attempts of `next_words(attempt, bad_host)` until the job is done or given up; return how the last one ended.

    `state` is a folder in which each attempt gets a folder. `nodes` are the job's other nodes, each with its own
    `flatout run`, as torchrun has an agent on each. `settles` is asked first about each attempt that ended: it decides
    about those that ended for a reason which the next command avoids.
    """
    hosts = SuspectedHosts()
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
        judgement = _judgement(done, watched, nodes)
        decision = settles(judgement, done)
        if decision is None:
            is_silent = not done.ranks and done.ended.shell_code < _BY_SIGNAL
            decision = restarts.decide(judgement, done.evidence.step, silent_s=ran_s if is_silent else None)
        if _is_failure(judgement):
            decision = _settled_with(nodes, judgement, decision)
        book.attempt_ends(attempt, done, judgement, decision)
        remark = _remark(attempt, done, judgement, progress)
        progress.ends(done.ranks)
        for line in _report(attempt, judgement, decision):
            say(line)
        if remark is not None:
            say(remark)
        if done.left:
            say(f"the command exited and left running, unmonitored: process {', '.join(done.left)}")
        if not decision.restarts:
            return _last_end(done.ended, judgement, decision, restarts.machine_code)
        bad_host = hosts.bad(done.evidence.host, judgement)
        stopped = pause(decision.pause_s)
        if stopped is not None:
            book.stops(stopped)
            return stopped
        attempt += 1


def _judgement(done: AttemptResult, watched: AttemptRunner, nodes: PeerBoard) -> Judgement:
    """Return how the attempt ended: by its own evidence, by a failure on another node, or because one reverted."""
    if done.is_reverted:
        return REVERTED
    judgement = _with_reason(judge(done.evidence), nodes)
    if _is_failure(judgement) and nodes.reverted_node() is not None and watched.is_reverting(done.ranks):
        return REVERTED  # that node ended its ranks a moment before
    return judgement


def _last_end(ended: ExitStatus, judgement: Judgement, decision: Decision, machine_code: int | None) -> ExitStatus:
    """Return how this part of the job ended, in the code by which a scheduler knows what to do next."""
    is_moved = judgement.leaves_host and decision.goes_on and machine_code is not None
    if is_moved:
        return msgspec.structs.replace(ended, code=machine_code, signal=None)
    has_left = judgement.rule == REVERTED.rule and decision.why != ASKED
    if has_left:  # Flatout itself ended this part of the job, which continues on other nodes
        return msgspec.structs.replace(ended, code=0, signal=None)
    return ended


def _is_failure(judgement: Judgement) -> bool:
    return judgement.rule not in ("done", "asked-to-end", REVERTED.rule)


def _with_reason(judgement: Judgement, nodes: PeerBoard) -> Judgement:
    """Add the failure on another node, if the ranks of this node only lost their peers."""
    if not _is_failure(judgement) or not judgement.is_of_peers:
        return judgement
    reason = nodes.reason()
    if reason is None:
        return judgement
    return msgspec.structs.replace(judgement, says=f"{judgement.says}; {reason}")


def _settled_with(nodes: PeerBoard, judgement: Judgement, decision: Decision) -> Decision:
    """Report the failure to the other nodes; a node that gives up ends the job for all."""
    given_up = nodes.given_up()
    if given_up is not None:
        decision = Decision(restarts=False, why=given_up)
    nodes.fails(None if judgement.is_of_peers else judgement.says)
    if not decision.restarts:
        nodes.gives_up(decision.why)
    return decision


def _report(attempt: int, judgement: Judgement, decision: Decision) -> Iterator[str]:
    """Yield the lines for the user about a failed attempt."""
    if not _is_failure(judgement):
        return
    if judgement.rule != "hang":  # a hang was reported when it was detected
        yield f"attempt {attempt + 1} failed: {judgement.says}{_FAULTS.get(judgement.fault, '')}"
    yield decision.why
    if not decision.restarts and judgement.way_out is not None:
        yield f"way out: {judgement.way_out}"


def _remark(attempt: int, done: AttemptResult, judgement: Judgement, progress: StepProgress) -> str | None:
    """Return a remark about a restarted job that ended normally without a step, although it had made steps before."""
    is_restarted = attempt > 0 and progress.farthest > 0
    has_step = any(pulse.num_steps for pulse in done.ranks)
    if judgement.rule != "done" or not is_restarted or not done.ranks or has_step:
        return None
    return (
        f"the restarted job ended without making a step, after {progress.farthest} steps in earlier attempts: "
        "check whether its work was complete, and whether it resumed from the right checkpoint"
    )
