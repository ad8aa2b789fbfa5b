"""Split one attempt's GPU time into lost, used, idle-held and unsplit: whole GPU-milliseconds that sum to those held.

- lost: in an attempt that did not end as it or its user intended (failed, out of time, preempted, requeued, node
  failure), the time since its last checkpoint; all of it if nothing says that it saves any.
- idle-held: of the rest, the share in which its GPUs did nothing; used: the share in which they did something.
- unsplit: the rest of an attempt whose usage was not measured; how much of it was used or idle-held is unknown.

Cancelled attempts are not lost: ending a job is its user's choice, just as starting it was.
"""

from __future__ import annotations

from flatout.records.attempts import JobAttempt, Usage
from flatout.records.chargeback import LineName, LossCause

CAUSES: dict[str, LossCause] = {
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "LAUNCH_FAILED": "node failure",
    "RECONFIG_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "NODE_FAIL": "node failure",
    "TIMEOUT": "time-out",
    "DEADLINE": "time-out",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
}


def split(attempt: JobAttempt, usage: Usage | None) -> dict[LineName, int]:
    """Return the GPU-milliseconds of each line, each at least 0; they sum to `held_ms`."""
    held = held_ms(attempt)
    lost = _lost_ms(attempt, usage, held)
    rest = held - lost
    if usage is None or usage.busy_share is None:
        return {"used": 0, "idle_held": 0, "unsplit": rest, "lost": lost}
    idle = round(rest * (1 - usage.busy_share))
    return {"used": rest - idle, "idle_held": idle, "unsplit": 0, "lost": lost}


def held_ms(attempt: JobAttempt) -> int:
    """Return the GPU-milliseconds that the attempt held."""
    return round(attempt.num_gpus * attempt.elapsed_s * 1000)


def _lost_ms(attempt: JobAttempt, usage: Usage | None, held: int) -> int:
    if attempt.state not in CAUSES:
        return 0
    if usage is None or usage.checkpoint_interval_s is None:
        return held
    unsaved_s = attempt.elapsed_s % usage.checkpoint_interval_s
    return min(held, round(attempt.num_gpus * unsaved_s * 1000))
