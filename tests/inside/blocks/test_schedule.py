"""The plan of the blocks: how long they are, how many, and where they begin."""

from __future__ import annotations

import json

import pytest

from flatout.inside.blocks.schedule import MAX_STEPS, BlockPlan, BlockSchedule, blocks, make_plan, read_schedule


def schedule(
    *,
    order: tuple[int, ...] = (0, 1, 1, 0, 2, 0, 0, 2),
    carry_overs: tuple[int, ...] = (2, 5),
    min_block_s: float = 0.5,
    max_s: float = 100.0,
) -> BlockSchedule:
    arms = [{"name": f"x{number}", "settings": [], "carry_over": carry} for number, carry in enumerate(carry_overs)]
    text = {
        "arms": arms,
        "order": order,
        "unit": 4,
        "min_steps": 10,
        "min_block_s": min_block_s,
        "max_s": max_s,
    }
    return read_schedule(json.dumps(text))


def test_carry_over_is_that_of_the_arm_before_or_after_the_switch_whichever_is_longer() -> None:
    plan = BlockPlan(first=100, num_steps=10, num_blocks=8)
    found = [(block.first, block.first_measured, block.end) for block in blocks(schedule(), plan)]
    assert found == [
        (100, 101, 111),  # the baseline at the beginning: no switch
        (111, 113, 123),
        (123, 124, 134),
        (134, 136, 146),
        (146, 151, 161),
        (161, 166, 176),
        (176, 177, 187),
        (187, 192, 202),
    ]


@pytest.mark.parametrize(
    ("step_s", "num_steps"),
    [(0.0, 10), (0.051, 10), (0.05, 10), (0.049, 11), (0.01, 50), (1e-6, MAX_STEPS)],
)
def test_a_block_has_at_least_the_steps_and_the_seconds_of_the_schedule(step_s: float, num_steps: int) -> None:
    assert make_plan(schedule(max_s=1e6), first=0, step_s=step_s).num_steps == num_steps


@pytest.mark.parametrize(
    ("max_s", "num_blocks"),
    [
        (102.0, 8),  # 102 steps of a second
        (101.9, 4),
        (46.0, 4),
        (45.9, 4),  # at least one unit
        (0.1, 4),
    ],
)
def test_only_complete_units_that_fit_are_planned(max_s: float, num_blocks: int) -> None:
    assert make_plan(schedule(max_s=max_s), first=100, step_s=1.0).num_blocks == num_blocks


@pytest.mark.parametrize("order", [(), (0, 3), (-1,)])
def test_an_order_that_names_no_arm_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="names an arm that does not exist, or no arm at all"):
        schedule(order=order)
