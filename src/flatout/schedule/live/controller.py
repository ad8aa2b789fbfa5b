"""The controller: read, decide, act, and repeat. It acts only with a log; without a log it reports what it would do.

    each action:  written to the log and synced -> done by the scheduler -> its outcome written

If it is killed at any moment and restarted, it reads in the log what it had begun, checks whether the cluster did that,
and decides again; so nothing is done twice, and the hourly limit holds across restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import msgspec

from flatout.errors import FlatoutError, OutputError
from flatout.schedule.live.actions import Action, observed, running_since, sentence
from flatout.schedule.live.controller_state import ControllerState, state_from_log
from flatout.schedule.live.decide import ControllerSettings, decide
from flatout.schedule.live.log import LogFile, LoggedAction
from flatout.schedule.live.phrases import gpus
from flatout.schedule.live.slurm import RefusedError, Scheduler, UnavailableError
from flatout.schedule.live.view import ClusterView, NodeFailure

Say = Callable[[str], None]
_SETTLE_S = 1.0


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one cycle: the view and the actions. `held_back`: actions beyond the hourly limit."""

    unix_s: float
    num_running: int
    num_waiting: int
    num_gpus: int
    num_free_gpus: int
    actions: tuple[Action, ...]
    outcomes: tuple[str, ...]  # done, failed or unknown; in a dry run: would
    held_back: tuple[Action, ...]


class Controller:
    """Reads, decides and acts. `enrich` adds idle GPUs and predictions to a view; without a `log` it is a dry run."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: ControllerSettings,
        *,
        log: LogFile | None,
        former: tuple[Sequence[LoggedAction], Sequence[NodeFailure]] = ((), ()),
        max_actions_per_hour: int,
        enrich: Callable[[ClusterView], ClusterView],
        say: Say,
    ) -> None:
        self._scheduler, self._settings, self._log, self._former = scheduler, settings, log, former
        self._max, self._enrich, self._say = max_actions_per_hour, enrich, say
        self._down: set[str] | None = None
        if log is not None and any(entry.outcome == "unknown" for entry in log.entries):
            time.sleep(_SETTLE_S)  # lets an action that was in progress when the controller was killed take effect

    def cycle(self) -> Cycle:
        """Read, decide and act once. Raises UnavailableError if the scheduler does not answer."""
        view = self._enrich(self._scheduler.read())
        self._settle(view)
        self._note_failures(view)
        entries, failures = (self._log.entries, self._log.failures) if self._log is not None else self._former
        memory = state_from_log(entries, failures, view.now_unix_s)
        view = _recalled(view, memory)
        allowed, held_back = _within(decide(view, memory, self._settings), self._max - memory.num_actions_last_hour)
        done = list(self._act(allowed))
        if held_back:
            self._say(f"{len(held_back)} more actions postponed: the limit is {self._max} per hour")
        return Cycle(
            unix_s=view.now_unix_s,
            num_running=sum(job.state == "running" for job in view.jobs),
            num_waiting=sum(job.is_waiting for job in view.jobs),
            num_gpus=sum(node.num_gpus for node in view.nodes),
            num_free_gpus=sum(view.free_gpus().values()),
            actions=tuple(action for action, _ in done),
            outcomes=tuple(outcome for _, outcome in done),
            held_back=tuple(held_back),
        )

    def _settle(self, view: ClusterView) -> None:
        """Log the outcome of actions that an earlier controller had begun but not finished when it ended."""
        if self._log is None:
            return
        for entry in self._log.entries:
            if entry.outcome == "unknown":
                is_done = observed(entry.action, view) == entry.action.value
                self._log.end(entry, "done" if is_done else "failed", "seen on the cluster afterwards")
                self._say(f"{'done' if is_done else 'not done'} before the restart: {sentence(entry.action)}")

    def _note_failures(self, view: ClusterView) -> None:
        """Log a failure for each node that went down since the last cycle."""
        down = {node.name for node in view.nodes if node.is_down}
        known, self._down = self._down, down
        if self._log is None or known is None:
            return
        for name in sorted(down - known):
            self._log.failed(NodeFailure(node=name, unix_s=view.now_unix_s))

    def _act(self, actions: Iterable[Action]) -> Iterable[tuple[Action, str]]:
        given_up: set[str] = set()
        for action in actions:
            if action.group and action.group in given_up:
                continue
            if self._log is None:
                self._say(f"would {sentence(action)}")
                yield action, "would"
                continue
            outcome = self._do(action, self._log)
            if outcome != "done" and action.group:
                given_up.add(action.group)  # the rest of the group would be useless
            yield action, outcome

    def _do(self, action: Action, log: LogFile) -> str:
        if action.kind in ("requeue", "requeue-hold"):
            # Slurm would also requeue a job that has ended since the cluster was read.
            job = self._scheduler.job(action.target)
            if job is None or job.state != "running" or running_since(job) != action.previous:
                self._say(f"skipped: {sentence(action)} (it no longer runs)")
                return "failed"
        entry = log.begin(action)
        try:
            self._scheduler.perform(action)
        except RefusedError as error:
            log.end(entry, "failed", str(error))
            self._say(f"refused: {sentence(action)} ({error})")
            return "failed"
        except UnavailableError as error:
            self._say(f"unknown whether done: {sentence(action)} ({error})")
            return "unknown"
        log.end(entry, "done")
        self._say(sentence(action))
        return "done"


def named(scheduler: Scheduler, *, interval_s: float, once: bool, say: Say) -> str:
    """Return the cluster's name, waiting until the scheduler answers."""
    while True:
        try:
            return scheduler.cluster()
        except UnavailableError as error:
            if once:
                raise
            say(f"{error}; trying again in {interval_s:.0f} s")
            time.sleep(interval_s)


def run(controller: Controller, *, interval_s: float, once: bool, say: Say, report: Callable[[Cycle], None]) -> None:
    """Run cycles until interrupted, or only one. If the scheduler does not answer, say so in one line and retry."""
    while True:
        started = time.monotonic()
        try:
            report(controller.cycle())
        except OutputError:
            raise  # a log that cannot be written
        except FlatoutError as error:
            if once:
                raise
            say(f"{error}; trying again in {interval_s:.0f} s")
        if once:
            return
        time.sleep(max(interval_s - (time.monotonic() - started), 0.1))


def summary(cycle: Cycle) -> str:
    """Return one line that sums up what was read."""
    return (
        f"{cycle.num_running} jobs run, {cycle.num_waiting} wait;"
        f" {cycle.num_free_gpus} of {gpus(cycle.num_gpus)} are free"
    )


def _recalled(view: ClusterView, memory: ControllerState) -> ClusterView:
    """Add what a scheduler forgets about requeued jobs: their GPU-time so far and their first submission time."""
    jobs = tuple(
        msgspec.structs.replace(job, submit_unix_s=min(job.submit_unix_s, memory.submit_unix_s[job.id]))
        if job.id in memory.submit_unix_s
        else job
        for job in view.jobs
    )
    return msgspec.structs.replace(view, jobs=jobs, attained_gpu_s=memory.attained_gpu_s)


def _within(actions: Sequence[Action], left: int) -> tuple[list[Action], list[Action]]:
    """Split actions into those within the limit and the others; groups are not split; reverts are always allowed."""
    allowed: list[Action] = []
    held_back: list[Action] = []
    for group, members in groupby(actions, key=lambda action: action.group):
        together = list(members)
        for part in [together] if group else [[action] for action in together]:
            number = sum(not action.is_reverting for action in part)
            if number <= left:
                left -= number
                allowed.extend(part)
            else:
                held_back.extend(part)
    return allowed, held_back
