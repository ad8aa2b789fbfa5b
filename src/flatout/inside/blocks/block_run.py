"""Carry out the blocks of one rank: switch at the planned steps, and note each block in the step file.

In: the end of each step, from `Phases`. Out: the kind of the next step, and an event per complete block. Rank 0 makes
the plan and publishes it; the other ranks read it before its first step. A rank that reads it too late does not switch,
and its events say so.

On a GPU, the host runs ahead of the steps that it has started, so its times of single steps are not what they cost.
Each measured step is therefore timed by the GPU too, from the end of one step to the end of the next, and the GPU is
drained at the end of a block, so that no step of one arm is paid for by the other.
"""

from __future__ import annotations

import time

from flatout.inside.blocks.arms import ArmSwitcher
from flatout.inside.blocks.device_times import DeviceTimes
from flatout.inside.blocks.schedule import Arm, Block, BlockPlan, BlockSchedule, blocks, make_plan
from flatout.inside.identity import Identity
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
        self._blocks: list[Block] = []
        self._place = -1  # of the current block in `_blocks`; -1: before the first
        self._on = self._arms[0]
        self._times = DeviceTimes()
        self._is_late = False
        self.is_over = False

    def agree(self, plan: TracePlan, step_s: float) -> None:
        """Plan the blocks on rank 0, as soon as the ranks have agreed on the end of the warm-up."""
        if self._identity.rank == 0:
            first = plan.flops_step + max(steps_ahead(step_s, self._identity), 1)
            block_plan = make_plan(self._schedule, first=first, step_s=step_s)
            self._plan_file.publish(block_plan)
            self._follow(block_plan)

    def _follow(self, plan: BlockPlan) -> None:
        self._plan = plan
        self._blocks = list(blocks(self._schedule, plan))

    def advance(self, ended: int) -> str:
        """Do the work that is due after step `ended`, and return the kind of the next step."""
        following = ended + 1
        if self._plan is None:
            plan = self._plan_file.look(time.perf_counter_ns())
            if plan is None:
                return StepKind.ORDINARY
            self._follow(plan)
            self._is_late = following > plan.first
        if self._is_late or self.is_over:
            return self._advance_late(following)
        if self._place >= 0:
            self._on.step_ended()
        block = self._current()
        if block is not None and following < block.end:
            if following >= block.first_measured:
                self._times.step_ended()
            return StepKind.SWITCHED if following < block.first_measured else StepKind.ORDINARY
        if block is None and following < self._blocks[0].first:
            return StepKind.ORDINARY
        if block is not None:
            self._end(block)
        self._begin_next()
        return StepKind.SWITCHED

    def _advance_late(self, following: int) -> str:
        if not self.is_over and following >= self._blocks[-1].end:
            self._note(self._blocks[-1], None, _TOO_LATE)
            self.is_over = True
        return StepKind.ORDINARY

    def _current(self) -> Block | None:
        return self._blocks[self._place] if self._place >= 0 else None

    def _end(self, block: Block) -> None:
        self._times.step_ended()
        device_ns = self._times.take()
        self._on.block_ended()
        self._note(block, device_ns, self._on.problem)

    def _note(self, block: Block, device_ns: list[int] | None, problem: str | None) -> None:
        arm: Arm = self._schedule.arms[block.arm]
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

    def _begin_next(self) -> None:
        self._place += 1
        block = self._current() if self._place < len(self._blocks) else None
        arm = self._arms[block.arm if block is not None else 0]
        if arm is not self._on:
            self._on.undo()
            arm.apply()
            self._on = arm
        if block is None:
            self.is_over = True
