"""When the warm-up ends, and how ranks come to trace the same steps."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.identity import Identity, find_identity
from flatout.inside.phases.consensus import NUM_UNTRACED_STEPS, PlanFile, TracePlan, make_plan
from flatout.inside.phases.phases import Phases
from flatout.inside.phases.warmup import WarmupDetector
from flatout.inside.recording.step_detector import StepSource
from flatout.inside.settings import RecorderSettings, StopRule


def steps_until_settled(
    times: list[float], source: StepSource = StepSource.OPTIMIZER, *, is_training: bool = True
) -> int | None:
    settling = WarmupDetector()
    for number, step_s in enumerate(times, 1):
        settling.add(step_s)
        if settling.is_over(source, is_training=is_training):
            return number
    return None


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.2] * 20, 11),  # DistributedDataParallel waits for the GPU in ten, and the one after them is short
        ([0.01] * 200, 50),  # fifty steps where a second would take longer
        ([0.36] * 20, 11),  # eleven steps where four seconds would take longer
        ([0.5] * 20, 8),  # four seconds
        ([1.0] * 20, 4),  # four steps
        ([1.0, 1.0, 1.3, 1.0] + [1.0] * 20, 7),  # the last two must be within 10 % of the two before
        ([5.0, 3.0, 2.0, 1.0] + [0.5] * 20, 8),  # four settled steps, which are four seconds at half a second a step
        ([0.8, 0.6, 0.5, 0.4, 0.35] + [0.3] * 20, 13),  # of ten steps and more, five are compared with five
        ([60.0] * 4, 3),
        ([0.2, 0.2, 0.2, 0.2, 4.0] * 8, 11),  # a checkpoint now and then
        ([0.1 * 1.2**number for number in range(40)], 38),  # it never settles: two minutes at most
        ([0.2] * 10, None),
        # Batches that come in bursts: medians of five never agree, means of whole bursts do.
        ([0.02, 0.2] * 60, 11),  # of two workers
        ([0.02, 0.02, 0.3] * 60, 11),  # of three
        ([0.02, 0.04] * 5 + [0.02, 0.2] * 60, 18),  # not before the bursts are as long as those before
        ([0.11, 0.13] * 60, 11),
    ],
)
def test_warm_up_ends(times: list[float], expected: int | None) -> None:
    if expected == 38:
        found = steps_until_settled(times)
        assert found is not None
        assert sum(times[:found]) >= 120 > sum(times[: found - 1])
    else:
        assert steps_until_settled(times) == expected


def test_steps_that_may_be_parts_of_one_take_longer() -> None:
    assert steps_until_settled([0.5] * 99, StepSource.BATCH, is_training=False) == 20
    assert steps_until_settled([0.5] * 99, StepSource.BATCH) == 64
    assert steps_until_settled([0.5] * 99, StepSource.BACKWARD) == 64


def test_a_given_warm_up_is_kept() -> None:
    settling = WarmupDetector(warmup=2)
    settling.add(9.0)
    assert not settling.is_over(StepSource.OPTIMIZER, is_training=True)
    settling.add(0.1)
    assert settling.is_over(StepSource.OPTIMIZER, is_training=True)


@pytest.mark.parametrize(("times", "is_hopeless"), [([3.1] * 4, True), ([3.1] * 3, False), ([3.1] * 4 + [2.9], False)])
def test_steps_are_hopeless_if_four_in_a_row_take_three_times_as_long_as_allowed(
    times: list[float], is_hopeless: bool
) -> None:
    detector = WarmupDetector()
    for step_s in times:
        detector.add(step_s)
    assert detector.is_hopeless(1.0) == is_hopeless


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ([16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0], 17),  # fast until the queue is empty
        ([16, 16, 15, 16, 15, 15, 16, 15, 15, 16, 15, 16], 11),  # workers keep up
        ([9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 8], 11),  # one fewer is chance
        ([9, 9, 9, 9, 9, 9, 9, 9, 9, 8, 7, 7, 7, 7, 7], 14),  # two fewer are not, until they are five steps ago
        ([None] * 20, 11),  # no workers
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 11),  # the queue fills up
    ],
)
def test_the_warm_up_waits_until_batches_made_ahead_are_used_up(ready: list[int | None], expected: int) -> None:
    detector = WarmupDetector()
    for num_ready in ready:
        detector.add(0.2)
        detector.add_ready(num_ready)
        if detector.is_over(StepSource.OPTIMIZER, is_training=True):
            break
    assert detector.num_steps == expected


@pytest.mark.parametrize(("num_steps", "num_stable"), [(9, 2), (10, 5)])
def test_a_short_warm_up_ends_with_fewer_stable_steps(num_steps: int, num_stable: int) -> None:
    detector = WarmupDetector()
    for _ in range(num_steps):
        detector.add(1.0)
    assert detector.num_stable == num_stable


def test_the_mean_of_the_last_steps_leaves_out_a_boundary() -> None:
    detector = WarmupDetector()
    assert detector.mean_s == 0
    for step_s in [9.0, 9.0, *[0.1, 0.5] * 4, 0.1, 14.0]:
        detector.add(step_s)
    assert detector.step_s == 0.5  # the median of alternating steps is one of them
    assert detector.mean_s == pytest.approx((4 * 0.5 + 5 * 0.1) / 9)


def test_steps_in_bursts_are_compared_by_whole_bursts() -> None:
    detector = WarmupDetector()
    for step_s in [0.02, 0.2] * 6:
        detector.add(step_s)
    assert detector.num_stable == 4


def identity(world_size: int = 2, rank: int = 0, num_nodes: int | None = 1) -> Identity:
    return Identity(rank=rank, world_size=world_size, local_rank=None, backend=None, num_nodes=num_nodes)


@pytest.mark.parametrize(
    ("world_size", "num_nodes", "step_s", "least"),
    [(1, 1, 0.01, NUM_UNTRACED_STEPS), (8, 1, 0.01, 30), (16, 2, 0.01, 300), (8, 1, 10.0, NUM_UNTRACED_STEPS)],
)
def test_other_ranks_have_time_to_read_the_plan(world_size: int, num_nodes: int, step_s: float, least: int) -> None:
    plan = make_plan(
        settled=50, step_s=step_s, num_steps=3, is_light=False, identity=identity(world_size, 0, num_nodes)
    )
    assert plan.flops_step - plan.settled == least
    assert plan.start is not None
    assert plan.start > plan.flops_step + 2


class PlanEvent:
    """In place of the step file: keeps the plan."""

    def __init__(self) -> None:
        self.plan: dict[str, Any] = {}

    def event(self, name: str, **fields: Any) -> None:
        if name == "plan":
            self.plan = fields


@pytest.mark.parametrize("burst", [[0.02, 0.02, 0.3], [0.3, 0.02], [0.1]])
def test_a_profile_measures_for_the_wanted_time_also_where_batches_come_in_bursts(
    tmp_path: Path, burst: list[float]
) -> None:
    """The median of steps in bursts is that of their short or of their long ones, several times off their mean."""
    settings = RecorderSettings(
        recording=tmp_path, has_facts=False, stop_rule=StopRule(min_steps=2, max_steps=900, min_s=3.0)
    )
    file = PlanEvent()
    phases = Phases(settings, identity(world_size=1), file)  # type: ignore[arg-type]
    times = list(islice(cycle(burst), 1000))
    for step, step_s in enumerate(times):
        phases.add(step, step_s, "")
        phases.advance(step, StepSource.OPTIMIZER, is_training=True)
        if file.plan:
            break
    measured_s = sum(times[file.plan["settled"] : file.plan["flops_step"]])
    assert 2.8 <= measured_s <= 4.0


def test_long_steps_are_traced_less_often() -> None:
    def num_steps(step_s: float) -> int:
        return make_plan(settled=9, step_s=step_s, num_steps=5, is_light=False, identity=identity()).num_steps

    assert [num_steps(step_s) for step_s in (0.1, 10.0, 400.0)] == [5, 3, 1]


def test_a_plan_reaches_the_other_ranks(tmp_path: Path) -> None:
    leader, other = (
        PlanFile(TracePlan, tmp_path, identity(), "plan-0"),
        PlanFile(TracePlan, tmp_path, identity(rank=1), "plan-0"),
    )
    assert other.look(10**9) is None
    plan = make_plan(settled=9, step_s=0.1, num_steps=3, is_light=False, identity=identity())
    leader.publish(plan)
    assert other.look(10**9 + 1) is None  # asked again too soon
    assert other.look(2 * 10**9) == plan


def test_half_a_plan_is_no_plan(tmp_path: Path) -> None:
    other = PlanFile(TracePlan, tmp_path, identity(rank=1), "plan-0")
    (tmp_path / "plan-0").write_text('{"settled": 9, "flops_st')
    assert other.look(10**9) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (3, 8, 1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3", "SLURM_NNODES": "1"}, (3, 8, 3, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2, None, None)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, (0, 1, None, None)),
        ({}, (0, 1, None, None)),
    ],
)
def test_launchers_variables(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    found = find_identity(variables)
    assert (found.rank, found.world_size, found.local_rank, found.num_nodes) == expected
