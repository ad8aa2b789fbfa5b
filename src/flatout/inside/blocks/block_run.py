"""Carry out the blocks of one rank: switch at the planned steps, and note each block in the step file.

In: the end of each step, from `Phases`. Out: the kind of the next step, and an event per complete block. Rank 0 makes
the plan and publishes it; the other ranks read it before its first step. A rank that reads it too late does not switch.

On a GPU, the host runs ahead of the steps that it has started, so its times of single steps are not what they cost.
Each measured step is therefore timed by the GPU too, from the end of one step to the end of the next, and the GPU is
drained at the end of a block, so that no step of one arm is paid for by the other.
"""

from __future__ import annotations

import time

from flatout.inside.blocks.arms import ArmSwitcher
from flatout.inside.blocks.device_times import DeviceTimes
from flatout.inside.blocks.dropped import DroppedArms
from flatout.inside.blocks.schedule import (
    BlockPlan,
    BlockSchedule,
    ScheduledArm,
    ScheduledBlock,
    arms_of_unit,
    make_plan,
    num_units,
    unit_blocks,
)
from flatout.inside.identity import Identity
from flatout.inside.log import LOG
from flatout.inside.phases.consensus import PlanFile, TracePlan, steps_ahead
from flatout.inside.protocol import StepFileEvent, StepKind
from flatout.inside.recording.step_file import StepFile
from flatout.inside.settings import RecorderSettings

_TOO_LATE = "this rank read the plan of the blocks after their first step: it was ahead"


class Blocks:
    """The arms of this process. They are made right after torch is imported, before the script makes its model."""

    def __init__(self) -> None:
        self.schedule: BlockSchedule | None = None
        self.arms: list[ArmSwitcher] = []

    def prepare(self, schedule: BlockSchedule) -> None:
        self.schedule = schedule
        self.arms = [ArmSwitcher(arm) for arm in schedule.arms]


BLOCKS = Blocks()


class BlockRun:
    """The blocks of one rank, from the end of its warm-up to the end of the last block."""

    def __init__(self, settings: RecorderSettings, identity: Identity, file: StepFile, generation: int) -> None:
        assert BLOCKS.schedule is not None
        self._schedule = BLOCKS.schedule
        self._arms = BLOCKS.arms
        self._identity = identity
        self._file = file
        self._plan_file = PlanFile(BlockPlan, settings.state, identity, f"blocks-{generation}")
        self._plan: BlockPlan | None = None
        self._dropped = DroppedArms(settings.state, identity, generation)
        self._unit = -1
        self._left: list[ScheduledBlock] = []  # of the current unit
        self._block: ScheduledBlock | None = None
        self._on = self._arms[0]
        self._times = DeviceTimes()
        self._measured_ns = 0  # when the measured steps of the block began
        self._is_late = False
        self.is_over = False

    def agree(self, plan: TracePlan, step_s: float) -> None:
        """Plan the blocks on rank 0, as soon as the ranks have agreed on the end of the warm-up."""
        if self._identity.rank == 0:
            first = plan.flops_step + max(steps_ahead(step_s, self._identity), 1)
            block_plan = make_plan(self._schedule, first=first, step_s=step_s)
            self._plan_file.publish(block_plan)
            self._plan = block_plan

    def advance(self, ended: int) -> str:
        """Do the work that is due after step `ended`, and return the kind of the next step."""
        following = ended + 1
        if self._plan is None:
            self._plan = self._plan_file.look(time.perf_counter_ns())
            if self._plan is not None and following > self._plan.first:
                LOG.write("this rank read the plan of the blocks after their first step: it switches nothing")
                self._is_late = True
        plan = self._plan
        if plan is None or following < plan.first or self._is_late or self.is_over:
            return StepKind.ORDINARY
        block = self._block
        if block is None or following >= block.end:
            if block is not None:
                self._on.step_ended()
                self._end(block)
            self._begin_next(plan, following)
            return StepKind.SWITCHED
        self._on.step_ended()
        if following < block.first_measured:
            return StepKind.SWITCHED
        if following == block.first_measured:
            self._measured_ns = time.perf_counter_ns()
        self._times.step_ended()
        return StepKind.ORDINARY

    def _end(self, block: ScheduledBlock) -> None:
        self._times.step_ended()
        device_ns = self._times.take()
        took_s = (time.perf_counter_ns() - self._measured_ns) / 1e9
        self._dropped.add(block.arm, took_s / (block.end - block.first_measured))
        self._on.block_ended()
        self._note(block, device_ns, self._on.problem)

    def _note(self, block: ScheduledBlock, device_ns: list[int] | None, problem: str | None) -> None:
        arm: ScheduledArm = self._schedule.arms[block.arm]
        self._file.event(
            StepFileEvent.BLOCK,
            block=block.number,
            arm=arm.name,
            is_switch=block.is_switch,
            first=block.first,
            first_measured=block.first_measured,
            end=block.end,
            device_ns=device_ns,
            problem=problem,
        )

    def _begin_next(self, plan: BlockPlan, following: int) -> None:
        if not self._left:
            self._begin_unit(plan, following)
        self._block = self._left.pop(0) if self._left else None
        arm = self._arms[self._block.arm if self._block is not None else 0]
        if arm is not self._on:
            self._on.undo()
            arm.apply()
            self._on = arm
        self.is_over = self._block is None

    def _begin_unit(self, plan: BlockPlan, following: int) -> None:
        """Choose the next unit, if there is one, without those of arms that are clearly slower."""
        before = self._block.arm if self._block is not None else 0
        self._unit += 1
        drops = self._unit > 0 and self._schedule.drops_slow_arms
        try:
            dropped = self._dropped.before_unit(self._unit) if drops else set()
        except TimeoutError:  # rank 0 is gone
            LOG.error("dropping arms")
            return
        last = num_units(self._schedule, plan)
        while self._unit < last and not dropped.isdisjoint(arms_of_unit(self._schedule, plan, self._unit)):
            self._unit += 1
        if self._unit < last:
            self._left = list(unit_blocks(self._schedule, plan, self._unit, first=following, before=before))
