"""The schedule of blocks, and the plan of steps that all ranks derive from it. This module does not use torch.

In: FLATOUT_BLOCKS, and rank 0's step time when its warm-up is over. Out: a `BlockPlan`, and the steps of each block. A
block has steps of carry-over, which depend on the arms before and after the switch, and then the same number of
measured steps in every arm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

MAX_STEPS = 10_000  # of a block, if steps take next to no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledArm:
    name: str
    settings: tuple[Setting, ...] = ()  # (): the baseline
    carry_over: int = 1  # number of steps after a switch into or out of this arm that are not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSchedule:
    arms: tuple[ScheduledArm, ...]  # the first is the baseline
    order: tuple[int, ...]  # places in `arms`, one per block
    unit: int  # number of consecutive blocks that are only of use together
    min_steps: int  # measured steps per block
    min_block_s: float
    max_s: float  # of all blocks together, at the step time of the warm-up
    drops_slow_arms: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    first: int  # first step of the first block
    num_steps: int  # measured steps per block
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledBlock:
    number: int
    arm: int  # place in `BlockSchedule.arms`
    is_switch: bool  # the block before was of another arm
    first: int  # first step, of the carry-over
    first_measured: int
    end: int  # first step after the block


def read_schedule(text: str) -> BlockSchedule:
    """Return the schedule in FLATOUT_BLOCKS. Raises an exception for any other text."""
    data = json.loads(text)
    arms = [ScheduledArm(name="baseline")]
    for arm in data["arms"]:
        settings = tuple(
            Setting(name=str(setting["name"]), parameters=dict(setting.get("parameters", {})))
            for setting in arm["settings"]
        )
        arms.append(
            ScheduledArm(name=str(arm["name"]), settings=settings, carry_over=max(int(arm.get("carry_over", 1)), 1))
        )
    order = tuple(int(place) for place in data["order"])
    if not order or not all(0 <= place < len(arms) for place in order):
        raise ValueError("the order names an arm that does not exist, or no arm at all")
    return BlockSchedule(
        arms=tuple(arms),
        order=order,
        unit=max(int(data.get("unit", 1)), 1),
        min_steps=max(int(data["min_steps"]), 1),
        min_block_s=float(data["min_block_s"]),
        max_s=float(data["max_s"]),
        drops_slow_arms=bool(data.get("drops_slow_arms", True)),
    )


def make_plan(schedule: BlockSchedule, *, first: int, step_s: float) -> BlockPlan:
    """Return rank 0's plan: blocks of at least `min_steps` and `min_block_s`, as many units as `max_s` allows."""
    num_steps = schedule.min_steps
    if step_s > 0:
        num_steps = min(max(num_steps, ceil(schedule.min_block_s / step_s)), MAX_STEPS)
    longest = BlockPlan(first=first, num_steps=num_steps, num_blocks=len(schedule.order))
    num_blocks = 0
    for block in blocks(schedule, longest):
        fits = (block.end - first) * step_s <= schedule.max_s
        is_unit = (block.number + 1) % schedule.unit == 0
        if is_unit and (fits or not num_blocks):  # at least one unit
            num_blocks = block.number + 1
    return BlockPlan(first=first, num_steps=num_steps, num_blocks=num_blocks or len(schedule.order))


def blocks(schedule: BlockSchedule, plan: BlockPlan) -> Iterator[ScheduledBlock]:
    """Yield the blocks of the plan, if no arm is dropped."""
    first, before = plan.first, 0
    for unit in range(num_units(schedule, plan)):
        for block in unit_blocks(schedule, plan, unit, first=first, before=before):
            yield block
            first, before = block.end, block.arm


def num_units(schedule: BlockSchedule, plan: BlockPlan) -> int:
    return ceil(plan.num_blocks / schedule.unit)


def arms_of_unit(schedule: BlockSchedule, plan: BlockPlan, unit: int) -> tuple[int, ...]:
    """Return the arm of each block of a unit."""
    return schedule.order[unit * schedule.unit : min((unit + 1) * schedule.unit, plan.num_blocks)]


def unit_blocks(
    schedule: BlockSchedule, plan: BlockPlan, unit: int, *, first: int, before: int
) -> Iterator[ScheduledBlock]:
    """Yield the blocks of one unit, which begins at step `first` after a block of the arm `before`.

    The first step of each block is carry-over even if the arm does not change.
    """
    for place, arm in enumerate(arms_of_unit(schedule, plan, unit)):
        is_switch = arm != before
        carry_over = max(schedule.arms[arm].carry_over, schedule.arms[before].carry_over) if is_switch else 1
        end = first + carry_over + plan.num_steps
        yield ScheduledBlock(
            number=unit * schedule.unit + place,
            arm=arm,
            is_switch=is_switch,
            first=first,
            first_measured=first + carry_over,
            end=end,
        )
        first, before = end, arm
