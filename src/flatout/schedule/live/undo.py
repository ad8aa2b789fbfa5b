"""Revert the actions in a controller's log, newest first, unless somebody has since changed the same value.

A requeue cannot be undone, because the job's work since its checkpoint is lost; but the job's hold is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from flatout.schedule.live.actions import FREE, HELD, IN_SERVICE, REQUEUED, Action, observed, sentence
from flatout.schedule.live.log import LogFile, LoggedAction
from flatout.schedule.live.slurm import RefusedError, Scheduler
from flatout.schedule.live.view import ClusterView

_SAME = ("priority", "nice", "partition", "qos")
_REASON = "undo"


class UndoStep(msgspec.Struct, frozen=True, kw_only=True):
    """One logged action and the action that reverts it; if that is None, the step is skipped, and `why` says why."""

    entry: LoggedAction
    action: Action | None
    why: str = ""


def steps(entries: Sequence[LoggedAction], view: ClusterView) -> Iterator[UndoStep]:
    """Yield the steps, newest first. Each step sees the state that the steps before it restored."""
    reverted: dict[tuple[str, str], str] = {}
    for entry in reversed(entries):
        action = entry.action
        if entry.outcome != "done" or entry.is_undone:
            continue
        subject = ("hold" if action.kind in ("hold", "release", "requeue-hold") else action.kind, action.target)
        now = reverted.get(subject, observed(_looked_at(action), view))
        back, why = _back(action, now)
        if back is not None:
            reverted[subject] = back.value
        yield UndoStep(entry=entry, action=back, why=why)


def _looked_at(action: Action) -> Action:
    return msgspec.structs.replace(action, kind="hold") if action.kind == "requeue-hold" else action


def _back(action: Action, now: str | None) -> tuple[Action | None, str]:
    target, changed = action.target, f"it is now {now}, not {action.value} as it was set"
    if now is None:
        return None, "it has started, ended or disappeared"
    if action.kind in _SAME:
        if now != action.value:
            return None, changed
        return _action(action, value=action.previous, previous=action.value), ""
    match action.kind:
        case "requeue" | "release" | "resume" | "unreserve" | "job-reservation":
            return None, "it cannot be undone"
        case "hold" | "requeue-hold":
            if now != HELD:
                return None, "it is no longer held" + (", and a requeue cannot be undone" * (action.value == REQUEUED))
            return Action(kind="release", target=target, previous=HELD, value=FREE, reason=_REASON), ""
        case "drain":
            if now != action.value:
                return None, changed
            return Action(kind="resume", target=target, previous=now, value=IN_SERVICE, reason=_REASON), ""
        case "reserve":
            if now != action.value:
                return None, "it no longer exists"
            return Action(kind="unreserve", target=target, previous=now, value=action.previous, reason=_REASON), ""
        case _:
            raise AssertionError(action.kind)


def _action(action: Action, *, value: str, previous: str) -> Action:
    return msgspec.structs.replace(
        action, value=value, previous=previous, reason=_REASON, group="", cause="", attained_gpu_s=0.0
    )


def undo_actions(
    entries: Sequence[LoggedAction], scheduler: Scheduler, *, log: LogFile | None, say: Callable[[str], None]
) -> None:
    """Undo the actions and record that in the log; without a log, say what would be done."""
    for step in steps(entries, scheduler.read()):
        if step.action is None:
            say(f"skipped {step.entry.action.kind} of {step.entry.action.target}: {step.why}")
        elif log is None:
            say(f"would {sentence(step.action)}")
        else:
            try:
                scheduler.perform(step.action)
            except RefusedError as error:
                say(f"refused: {sentence(step.action)} ({error})")
                continue
            log.undone(step.entry)
            say(sentence(step.action))
