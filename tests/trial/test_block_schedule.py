"""Which changes can be switched while a job runs, and the order of their blocks."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from tests.change.jobs import facts

from flatout.change import garbage_collection, process
from flatout.change.catalogue import all_changes
from flatout.change.combine import combine
from flatout.inside.blocks.arms import MODULES
from flatout.inside.blocks.schedule import read_schedule
from flatout.records.change import Change, ChangeSet, Knob, Patch
from flatout.trial.block_schedule import SWITCHABLE, BlockArm, block_arm, orders, schedule_text

JOB = facts()


def change(name: str) -> Change:
    return next(change for change in all_changes(JOB) if change.name == name)


@pytest.mark.parametrize("num_units", [1, 4, 5, 6])
@pytest.mark.parametrize("num_arms", [1, 3])
def test_each_arm_has_its_units_and_begins_half_of_them(num_units: int, num_arms: int) -> None:
    order = orders(num_arms, num_units, random.Random(0))
    units = [tuple(order[start : start + 4]) for start in range(0, len(order), 4)]
    assert len(units) == num_units * num_arms
    for arm in range(1, num_arms + 1):
        mine = Counter(unit for unit in units if arm in unit)
        assert mine.keys() <= {(0, arm, arm, 0), (arm, 0, 0, arm)}
        assert mine.total() == num_units
        assert abs(mine[0, arm, arm, 0] - mine[arm, 0, 0, arm]) == num_units % 2


def test_all_arms_have_a_unit_before_one_has_the_next() -> None:
    order = orders(3, 4, random.Random(0))
    arms = [max(order[start : start + 4]) for start in range(0, len(order), 4)]
    assert all(sorted(arms[start : start + 3]) == [1, 2, 3] for start in range(0, len(arms), 3))
    assert len({tuple(arms[start : start + 3]) for start in range(0, len(arms), 3)}) > 1


def test_the_order_is_by_chance_and_repeats_with_its_seed() -> None:
    assert orders(2, 8, random.Random(1)) == orders(2, 8, random.Random(1))
    assert len({tuple(orders(1, 8, random.Random(seed))) for seed in range(20)}) > 10
    first = Counter(orders(1, 1, random.Random(seed))[0] for seed in range(100))
    assert 30 < first[0] < 70


def test_a_schedule_is_what_the_job_reads() -> None:
    arm = block_arm(combine([change("gc-off")]), JOB)
    assert isinstance(arm, BlockArm)
    text = schedule_text([arm], num_units=2, max_s=30.0, seed=1, min_steps=12, min_block_s=0.5)
    schedule = read_schedule(text)
    assert [arm.name for arm in schedule.arms] == ["baseline", "gc-off"]
    (setting,) = schedule.arms[1].settings
    assert (setting.name, setting.parameters["how"]) == ("garbage_collection", "off")
    assert (schedule.unit, schedule.min_steps, schedule.min_block_s, schedule.max_s) == (4, 12, 0.5, 30.0)
    assert json.loads(text)["order"] == orders(1, 2, random.Random(1))
    assert len(schedule.order) == 8


def test_blocks_have_at_least_ten_steps_and_a_quarter_of_a_second() -> None:
    schedule = json.loads(schedule_text([], num_units=1, max_s=30.0, seed=1))
    assert (schedule["min_steps"], schedule["min_block_s"]) == (10, 0.25)


def test_threads_are_set_in_the_process_instead_of_by_a_variable() -> None:
    threads = next(iter(process.changes(facts(cores_allowed=8.0, threads_per_rank=1))), None)
    wanted = [c for c in process.changes(facts(cores_allowed=8.0, threads_per_rank=1)) if c.knob.name == "threads"]
    assert threads is not None
    arm = block_arm(combine([wanted[0]]), JOB)
    assert isinstance(arm, BlockArm)
    assert [(setting.name, setting.parameters) for setting in arm.settings] == [
        ("threads", {"number": int(wanted[0].value)})
    ]


def test_a_change_that_cannot_be_taken_back_says_why() -> None:
    freeze = next(c for c in garbage_collection.changes(JOB) if c.knob.name == "gc-freeze")
    assert block_arm(combine([freeze]), JOB) == (
        "gc-freeze needs a full collection to be taken back, which puts off those that it is compared with"
    )


def only(candidate: Change) -> ChangeSet:
    """One change, without those that it requires."""
    patches = () if candidate.patch is None else (candidate.patch,)
    return ChangeSet(changes=(candidate,), environment=candidate.environment, patches=patches)


def test_each_change_of_the_catalogue_is_an_arm_or_says_why_not() -> None:
    for candidate in all_changes(JOB):
        arm = block_arm(only(candidate), JOB)
        if isinstance(arm, str):
            assert arm.startswith(f"{candidate.name} ")
        else:
            assert arm.carry_over >= 1


@pytest.mark.parametrize(
    ("patch", "own", "carry_over"),
    [
        (Patch(name="tf32"), {}, 2),
        (Patch(name="ddp", parameters={"bucket_cap_mb": 100}), {}, 13),
        (Patch(name="ddp_hook", parameters={"hook": "bf16"}), {}, 13),
        (Patch(name="dataloader", parameters={"num_workers": 4}), {"loader_workers": 0}, 2 + 8),
        (Patch(name="dataloader", parameters={"num_workers": 4}), {"loader_workers": 2}, 2 + 4 + 8),
        (Patch(name="dataloader", parameters={"prefetch_factor": 8}), {"loader_workers": 2}, 2 + 4 + 16),
        (
            Patch(name="dataloader", parameters={"num_workers": 4}),
            {"loader_workers": 2, "loader_prefetch": 3, "passes_per_step": 4},
            2 + 5,  # 18 batches
        ),
        (Patch(name="dataloader", parameters={"pin_memory": True}), {"loader_workers": 2}, 2 + 4 + 4),
    ],
)
def test_steps_after_a_switch_are_not_measured_by_the_kind_of_the_change(
    patch: Patch, own: dict[str, object], carry_over: int
) -> None:
    knob = Knob(name="x", family="ddp", summary="", safety="exact", doc="", source="")
    changes = ChangeSet(changes=(Change(name="x", knob=knob, patch=patch),), patches=(patch,))
    of_job = facts(**{"loader_is_iterable": False, "loader_prefetch": None, "passes_per_step": 1, **own})
    arm = block_arm(changes, of_job)
    assert isinstance(arm, BlockArm)
    assert arm.carry_over == carry_over
    assert arm.keeps_spikes == (patch.name == "dataloader")


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (Patch(name="cudnn_benchmark"), "keeps the plan that it chose first"),
        (Patch(name="compile", parameters={"mode": "default"}), "compiles for longer than a block"),
        (Patch(name="dataloader", parameters={"persistent_workers": True}), "too rare for blocks"),
        (Patch(name="ddp", parameters={"static_graph": True}), "is fixed in the first step"),
        (Patch(name="garbage_collection", parameters={"how": "together", "every": 50}), "no fair share"),
        (Patch(name="of_the_future"), "cannot be switched while the job runs"),
    ],
)
def test_what_stays_in_the_process_needs_a_fresh_start(patch: Patch, reason: str) -> None:
    knob = Knob(name="x", family="ddp", summary="", safety="exact", doc="", source="")
    changes = ChangeSet(changes=(Change(name="x", knob=knob, patch=patch),), patches=(patch,))
    arm = block_arm(changes, JOB)
    assert isinstance(arm, str)
    assert reason in arm


def test_an_iterable_dataset_keeps_its_workers() -> None:
    arm = block_arm(only(change("dataloader-workers=2")), facts(loader_is_iterable=True))
    assert isinstance(arm, str)
    assert "iterable dataset" in arm


def test_every_setting_that_can_be_switched_has_its_switcher_in_the_job() -> None:
    assert {*SWITCHABLE, "threads"} == set(MODULES)
