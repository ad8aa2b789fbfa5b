"""One change to a scheduler's state, with the value before, the value after, and the reason.

`observed` reads from a view what an action changes, in the same form as `previous` and `value`. So a controller can
check after a crash whether an action was done, and before an undo whether somebody else has changed the same value
since.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schedule.live.view import ClusterView, JobView

Kind = Literal[
    "priority",
    "nice",
    "hold",
    "release",
    "requeue",
    "requeue-hold",
    "partition",
    "qos",
    "job-reservation",
    "drain",
    "resume",
    "reserve",
    "unreserve",
]
HELD, FREE = "held", "free"
REQUEUED = "requeued"
IN_SERVICE = "in service"
ABSENT, PRESENT = "absent", "present"


class NodeReservation(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    nodes: tuple[str, ...]
    duration_min: int


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One action on `target`: a job, a node or a reservation. Actions of one `group` are useful only together.

    `cause` is the job for which GPUs are freed. `attained_gpu_s` is the GPU-time that a requeued job had in this run.
    """

    kind: Kind
    target: str
    previous: str
    value: str
    reason: str
    group: str = ""
    cause: str = ""
    attained_gpu_s: float = 0.0
    submit_unix_s: float | None = None  # original submission time of a requeued job; Slurm forgets it
    reservation: NodeReservation | None = None

    @property
    def is_reverting(self) -> bool:
        """Whether the action ends what an earlier one began; no limit applies to such actions."""
        return self.kind in ("release", "resume", "unreserve")


def sentence(action: Action) -> str:
    """Return one line that describes the action and its reason."""
    target, before, after = action.target, action.previous, action.value
    done = f"{action.kind} {target}"
    match action.kind:
        case "priority" | "nice" | "partition" | "qos":
            done = f"set {action.kind} of job {target} from {before or 'none'} to {after}"
        case "hold" | "release" | "requeue":
            done = f"{action.kind} job {target}"
        case "requeue-hold":
            done = f"requeue job {target} and hold it"
        case "job-reservation":
            done = f"put job {target} into reservation {after}"
        case "drain" | "resume":
            done = f"{action.kind} node {target}"
        case "reserve":
            assert action.reservation is not None
            done = f"reserve {','.join(action.reservation.nodes)} as {target} for {action.reservation.user}"
        case "unreserve":
            done = f"delete reservation {target}"
    return f"{done}: {action.reason}"


def observed(action: Action, view: ClusterView) -> str | None:
    """Return the current value that an action would change; None if the target is gone or no longer in that state."""
    if action.kind in ("reserve", "unreserve"):
        return PRESENT if action.target in view.reservations else ABSENT
    if action.kind in ("drain", "resume"):
        node = view.node(action.target)
        if node is None:
            return None
        return node.reason if node.is_drained else IN_SERVICE
    job = view.job(action.target)
    return None if job is None else _of_job(action, job)


def _of_job(action: Action, job: JobView) -> str | None:
    if job.state == "ended":
        return None
    if action.kind in ("requeue", "requeue-hold"):
        return running_since(job) if job.state in ("running", "suspended") else REQUEUED
    if job.state != "pending":
        return None
    match action.kind:
        case "priority":
            return str(job.priority)
        case "nice":
            return str(job.nice)
        case "partition":
            return job.partition
        case "qos":
            return job.qos
        case "job-reservation":
            return job.reservation or ABSENT
        case _:
            return HELD if job.is_held else FREE


def running_since(job: JobView) -> str:
    """Return text that identifies one run of a job: after a requeue its start time differs."""
    return f"running since {job.start_unix_s or 0:.0f}"
