"""Make all ranks trace the same steps, through a small file and without a collective in the job's process group.

In: rank 0's step time when its warm-up is over. Out: one `TracePlan` that all ranks follow. Rank 0 chooses a step far
enough ahead that the other ranks will have read the file by then: a third of a second on one node, three seconds on
several nodes, whose shared folder can be slow to show changes. The other ranks look for the file between steps, about
every 50 ms. No rank waits: a rank that reads the plan too late skips the trace.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Generic, TypeVar

from flatout.inside.blocks.schedule import BlockPlan
from flatout.inside.identity import Identity
from flatout.inside.protocol import NUM_STABLE_WARMUP_STEPS
from flatout.inside.settings import StopRule

POLL_NS = 20_000_000
_NOTICE_S, _NOTICE_ACROSS_NODES_S = 0.3, 3.0
# Limits on how many steps ahead rank 0 plans. If steps take a few tenths of a millisecond, ranks in sync still poll the
# file within this number of steps.
_MAX_STEPS_AHEAD, _MAX_STEPS_AHEAD_ACROSS_NODES = 100, 1000
NUM_UNTRACED_STEPS = 5  # at least this many steps are measured before the recorder disturbs a step
NUM_RECOVERY_STEPS = 2  # number of steps after a disturbed step that are not counted
_MAX_TRACED_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePlan:
    """Step numbers. Steps from `settled` to `flops_step` (or else to the step before `start`) are not disturbed."""

    settled: int  # the first measured step
    flops_step: int
    start: int | None  # first step of the trace; None: no trace
    num_steps: int  # number of steps to trace
    num_stable: int = NUM_STABLE_WARMUP_STEPS  # steps before `settled` that were as fast as those before them


def make_plan(
    *,
    settled: int,
    step_s: float,
    num_steps: int,
    is_light: bool,
    identity: Identity,
    is_short: bool = False,
    num_untraced: int = NUM_UNTRACED_STEPS,
    num_stable: int = NUM_STABLE_WARMUP_STEPS,
) -> TracePlan:
    """Return rank 0's plan, given the step time `step_s` when its warm-up ends at step `settled`.

    At least `num_untraced` steps precede the trace. With `is_short` it begins as early as possible: after fewer
    untraced steps and fewer recovery steps.
    """
    num_untraced = 1 if is_short else num_untraced
    num_recovery = 0 if is_short else NUM_RECOVERY_STEPS
    flops_step = settled + max(num_untraced, steps_ahead(step_s, identity))
    affordable = int(_MAX_TRACED_S / step_s) if step_s > 0 else num_steps
    return TracePlan(
        settled=settled,
        flops_step=flops_step,
        start=None if is_light else flops_step + num_recovery + 2,  # one of these two steps prepares the profiler
        num_steps=max(min(num_steps, affordable), 1),
        num_stable=num_stable,
    )


def num_untraced_steps(rule: StopRule | None, step_s: float) -> int:
    """Return how many steps a profile measures before its trace: with a rule as many as a trial counts at least."""
    if rule is None or step_s <= 0:
        return NUM_UNTRACED_STEPS
    num_steps = max(rule.min_steps, ceil(rule.min_s / step_s))
    if rule.max_s is not None:
        num_steps = min(num_steps, max(int(rule.max_s / step_s), rule.min_steps))
    return max(min(num_steps, rule.max_steps), NUM_UNTRACED_STEPS)


def steps_ahead(step_s: float, identity: Identity) -> int:
    """Return the number of steps after which all ranks will have read what rank 0 writes now."""
    if identity.world_size == 1:
        return 0
    if step_s <= 0:  # only the first step has ended
        return NUM_UNTRACED_STEPS - 1
    if identity.num_nodes in (None, 1):
        return min(ceil(_NOTICE_S / step_s), _MAX_STEPS_AHEAD)
    return min(ceil(_NOTICE_ACROSS_NODES_S / step_s), _MAX_STEPS_AHEAD_ACROSS_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallPlan:
    """Step numbers of a second trace, of a stall."""

    start: int  # first step of the trace
    num_steps: int  # number of steps to trace
    near: int  # from this step on, each step end must be reported at once
    due: int  # the step that is due to stall
    period: int  # number of steps from stall to stall


_Plan = TypeVar("_Plan", TracePlan, StallPlan, BlockPlan)


class PlanFile(Generic[_Plan]):
    """A plan's file. Every rank creates it empty before reading it, so that no file server caches its absence."""

    def __init__(
        self, kind: type[_Plan], state: Path, identity: Identity, name: str, *, poll_ns: int = POLL_NS
    ) -> None:
        self._kind: type[_Plan] = kind
        self._poll_ns = poll_ns
        self._path = state / name
        self._is_alone = identity.world_size == 1
        self._next_ns = 0
        if not self._is_alone:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))

    def publish(self, plan: _Plan) -> None:
        if not self._is_alone:
            self._path.write_text(json.dumps(asdict(plan)) + "\n")

    def look(self, now_ns: int) -> _Plan | None:
        """Return the plan once it is written, else None; the file is read at most every `poll_ns`."""
        if now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + self._poll_ns
        text = self._path.read_text()
        return self._kind(**json.loads(text)) if text.endswith("\n") else None
