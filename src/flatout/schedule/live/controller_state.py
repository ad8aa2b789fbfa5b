"""The state of a controller: its earlier actions, read from its log alone, so that a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from flatout.schedule.live.log import LoggedAction
from flatout.schedule.live.view import NodeFailure

HOUR_S = 3600.0


class ControllerState(msgspec.Struct, frozen=True, kw_only=True):
    """A controller's earlier actions.

    `holds`: jobs requeued and held but not yet released, with their logged actions.
    """

    holds: Mapping[str, LoggedAction] = {}
    made_room_unix_s: Mapping[str, float] = {}
    num_preemptions: Mapping[str, int] = {}
    attained_gpu_s: Mapping[str, float] = {}
    submit_unix_s: Mapping[str, float] = {}
    drained_unix_s: Mapping[str, float] = {}
    reservations: Mapping[str, LoggedAction] = {}
    failures: tuple[NodeFailure, ...] = ()
    num_actions_last_hour: int = 0


def state_from_log(
    entries: Sequence[LoggedAction], failures: Iterable[NodeFailure], now_unix_s: float
) -> ControllerState:
    """Return the state after the logged actions; failed actions count only towards the hourly limit."""
    holds: dict[str, LoggedAction] = {}
    made_room: dict[str, float] = {}
    preemptions: dict[str, int] = {}
    attained: dict[str, float] = {}
    submitted: dict[str, float] = {}
    drained: dict[str, float] = {}
    reservations: dict[str, LoggedAction] = {}
    for entry in entries:
        action = entry.action
        if entry.outcome == "failed":
            continue
        match action.kind:
            case "requeue-hold" | "requeue":
                preemptions[action.target] = preemptions.get(action.target, 0) + 1
                attained[action.target] = attained.get(action.target, 0.0) + action.attained_gpu_s
                if action.submit_unix_s is not None:
                    submitted.setdefault(action.target, action.submit_unix_s)
                if action.cause:
                    made_room[action.cause] = entry.unix_s
                if action.kind == "requeue-hold" and not entry.is_undone:
                    holds[action.target] = entry
            case "release":
                holds.pop(action.target, None)
            case "drain":
                drained[action.target] = entry.unix_s
            case "reserve" if not entry.is_undone:
                reservations[action.target] = entry
            case "unreserve":
                reservations.pop(action.target, None)
    recent = [entry for entry in entries if now_unix_s - entry.unix_s < HOUR_S and not entry.action.is_reverting]
    return ControllerState(
        holds=holds,
        made_room_unix_s=made_room,
        num_preemptions=preemptions,
        attained_gpu_s=attained,
        submit_unix_s=submitted,
        drained_unix_s=drained,
        reservations=reservations,
        failures=tuple(failures),
        num_actions_last_hour=len(recent),
    )
