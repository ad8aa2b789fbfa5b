"""All ranks trace the same steps, agreed through a small file and without a collective in the job's process group.

Rank 0 decides when its step times have settled, and writes a plan for a step far enough ahead that the others will have
read it: a third of a second on one node, three on several, whose shared folder may be slow to show what is new. The
others look for it between steps, every 50 ms or so. Nobody waits: a rank that reads it too late misses the window.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

from flatout.inside.identity import Identity

_POLL_NS = 20_000_000
_NOTICE_S, _NOTICE_ACROSS_NODES_S = 0.3, 3.0
_MOST_STEPS_AHEAD = 100  # of a few tenths of a millisecond each: ranks in step with each other poll in between
NUM_UNTRACED_STEPS = 5  # at least so many settled steps before the recorder disturbs any
NUM_RECOVERY_STEPS = 2  # steps after a disturbed one that are not counted
_MAX_TRACED_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePlan:
    """Steps by number. `settled` to `flops_step` (or else to one before `start`) are the untraced steps."""

    settled: int
    flops_step: int
    start: int | None  # None: no trace
    num_steps: int


def make_plan(
    *, settled: int, step_s: float, num_steps: int, is_light: bool, identity: Identity, is_short: bool = False
) -> TracePlan:
    """The plan of rank 0, whose steps take `step_s` once settled at step `settled`.

    With `is_short` the window comes as soon as it can: after fewer untraced steps, and fewer to recover in.
    """
    flops_step = settled + max(1 if is_short else NUM_UNTRACED_STEPS, steps_ahead(step_s, identity))
    num_recovery = 0 if is_short else NUM_RECOVERY_STEPS
    affordable = int(_MAX_TRACED_S / step_s) if step_s > 0 else num_steps
    return TracePlan(
        settled=settled,
        flops_step=flops_step,
        start=None if is_light else flops_step + num_recovery + 2,  # one of them prepares the profiler
        num_steps=max(min(num_steps, affordable), 1),
    )


def steps_ahead(step_s: float, identity: Identity) -> int:
    """So many steps from now, all ranks will have read what rank 0 writes now."""
    if identity.world_size == 1:
        return 0
    if step_s <= 0:  # no step but the first has ended
        return NUM_UNTRACED_STEPS - 1
    is_one_node = identity.num_nodes in (None, 1)
    notice_s = _NOTICE_S if is_one_node else _NOTICE_ACROSS_NODES_S
    return min(ceil(notice_s / step_s), _MOST_STEPS_AHEAD if is_one_node else 10 * _MOST_STEPS_AHEAD)


class TracePlanFile:
    """The plan's file. Made empty by every rank before it is read, so that no file server remembers its absence."""

    def __init__(self, state: Path, identity: Identity, generation: int) -> None:
        self._path = state / f"plan-{generation}"
        self._is_alone = identity.world_size == 1
        self._next_ns = 0
        if not self._is_alone:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))

    def publish(self, plan: TracePlan) -> None:
        if not self._is_alone:
            self._path.write_text(json.dumps(asdict(plan)) + "\n")

    def look(self, now_ns: int) -> TracePlan | None:
        """The plan, once it is there; reads the file at most every 20 ms."""
        if now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + _POLL_NS
        text = self._path.read_text()
        return TracePlan(**json.loads(text)) if text.endswith("\n") else None
