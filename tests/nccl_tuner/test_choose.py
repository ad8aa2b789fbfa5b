"""Measured times -> rows of a table: thresholds, sizes between those measured, and groups."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest
from scipy import stats
from tests.nccl_tuner.fabrics import KIB, MIB, work

from flatout.nccl_tuner.choose import (
    ERROR_LEVEL,
    MIN_EFFECT,
    MIN_UNITS,
    best_start,
    choose_rows,
    compare,
    confirmed,
    times_by_round,
    times_by_turn,
    without_lost_rows,
)
from flatout.nccl_tuner.rank import rotated
from flatout.records.nccl_tuning import (
    Case,
    CollectiveWork,
    GroupShape,
    Measurements,
    NcclCandidate,
    Repetition,
    Start,
)

DEFAULT = NcclCandidate(name="default")
TREE = NcclCandidate(name="tree", algorithm="tree")
FEW = NcclCandidate(name="few", max_channels=2)
CTAS = NcclCandidate(name="16 CTAs", min_ctas=16, max_ctas=16)
START = Start(name="choices", candidates=(DEFAULT, TREE, FEW, CTAS))
WIGGLE = (1.0, 1.01, 0.99, 1.0, 1.005, 0.995)  # of the samples of a candidate


def measurements(
    seconds: Mapping[str, Mapping[int, float]], of_work: CollectiveWork, wiggle: tuple[float, ...] = WIGGLE
) -> Measurements:
    """One sample per round for each candidate and case."""
    samples = [
        Repetition(start="choices", candidate=name, case=case, round=number, seconds=value * factor)
        for name, by_case in seconds.items()
        for case, value in by_case.items()
        for number, factor in enumerate(wiggle if name != "default" else (1.0,) * len(wiggle))
    ]
    return Measurements(samples=tuple(samples), num_nodes=(1,) * len(of_work.shapes))


def rows(seconds: Mapping[str, Mapping[int, float]], of_work: CollectiveWork) -> list[tuple[object, ...]]:
    table, _, _ = choose_rows(measurements(seconds, of_work), START, of_work)
    return [
        (row.collective, row.min_bytes, row.max_bytes, row.num_ranks, row.algorithm, row.max_channels)
        for row in table.rows
    ]


def test_sizes_with_the_same_choice_become_one_row_that_ends_halfway_to_the_next() -> None:
    of_work = work("all_reduce", sizes=(4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB))
    default = dict.fromkeys(range(5), 1.0)
    tree = {0: 1.0, 1: 0.5, 2: 0.5, 3: 1.0, 4: 1.0}
    few = {0: 1.0, 1: 0.9, 2: 0.9, 3: 1.0, 4: 0.5}
    assert rows({"default": default, "tree": tree, "few": few}, of_work) == [
        ("all_reduce", 8 * KIB + 1, 128 * KIB, 2, "tree", None),
        ("all_reduce", 512 * KIB + 1, MIB, 2, None, 2),
    ]


def test_rows_never_reach_beyond_what_was_measured() -> None:
    of_work = work("all_gather", sizes=(4 * KIB, MIB))
    seconds = {"default": {0: 1.0, 1: 1.0}, "tree": {0: 0.5, 1: 0.5}}
    assert rows(seconds, of_work) == [("all_gather", 4 * KIB, MIB, 2, "tree", None)]


def test_options_of_a_communicator_are_returned_and_are_no_rows() -> None:
    of_work = work("all_reduce", sizes=(KIB,))
    measured = measurements({"default": {0: 1.0}, "16 CTAs": {0: 0.5}}, of_work)
    table, sizes, others = choose_rows(measured, START, of_work)
    assert (table.rows, others) == ((), (CTAS,))
    assert sizes[0].candidate == "16 CTAs"


def test_the_interval_is_students_t_with_the_level_shared_by_all_comparisons() -> None:
    of_work = work("all_reduce", sizes=(KIB, MIB))
    measured = measurements({"default": {0: 1.0, 1: 1.0}, "tree": {0: 0.9, 1: 0.9}, "few": {0: 0.9}}, of_work)
    times = times_by_round(measured)
    found = compare(times, ("choices", "default"), [("choices", "tree"), ("choices", "few")])
    assert len(found) == 3
    logs = [math.log(1 / (0.9 * factor)) for factor in WIGGLE]
    mean = sum(logs) / 6
    sd = math.sqrt(sum((log - mean) ** 2 for log in logs) / 5)
    half = stats.t.ppf(1 - 0.05 / 3, 5) * sd / math.sqrt(6)
    assert found[0].low == pytest.approx(math.exp(mean - half))
    assert found[0].high == pytest.approx(math.exp(mean + half))
    assert ERROR_LEVEL == 0.05


@pytest.mark.parametrize(("speedup", "is_better"), [(1.0199, False), (1.0201, True)])
def test_a_candidate_must_be_two_percent_faster(speedup: float, is_better: bool) -> None:
    of_work = work("all_reduce", sizes=(KIB,))
    same = (1.0, 1.0, 1.0)
    measured = measurements({"default": {0: speedup}, "tree": {0: 1.0}}, of_work, same)
    [found] = compare(times_by_round(measured), ("choices", "default"), [("choices", "tree")])
    assert found.is_better == is_better
    assert MIN_EFFECT == 0.02


@pytest.mark.parametrize(("num_rounds", "num_found"), [(MIN_UNITS - 1, 0), (MIN_UNITS, 1)])
def test_fewer_than_three_rounds_say_nothing(num_rounds: int, num_found: int) -> None:
    of_work = work("all_reduce", sizes=(KIB,))
    measured = measurements({"default": {0: 2.0}, "tree": {0: 1.0}}, of_work, (1.0, 1.01, 0.99)[:num_rounds])
    assert len(compare(times_by_round(measured), ("choices", "default"), [("choices", "tree")])) == num_found
    assert MIN_UNITS == 3


def start_samples(times: Mapping[str, list[float]], num_rounds: int = 2) -> Measurements:
    samples = [
        Repetition(start=name, candidate="default", case=0, round=number, seconds=seconds)
        for name, values in times.items()
        for number, seconds in enumerate(values)
    ]
    return Measurements(samples=tuple(samples), num_nodes=(1,))


def test_a_start_is_one_unit_per_turn() -> None:
    measured = start_samples({"default": [1.0, 3.0, 10.0, 20.0]})
    assert times_by_turn(measured, 2) == {("default", "default"): {0: {0: 2.0, 1: 15.0}}}


def test_the_settings_that_are_fastest_for_the_whole_work_win() -> None:
    starts = [Start(name=name, candidates=(DEFAULT,)) for name in ("default", "a", "b")]
    of_work = work("all_reduce", sizes=(KIB,), calls_per_step=1.0)
    wiggles = [1.0, 1.0, 1.01, 1.01, 0.99, 0.99, 1.0, 1.0]
    times = {"default": wiggles, "a": [0.5 * each for each in wiggles[::-1]], "b": [0.8 * each for each in wiggles]}
    best = best_start(start_samples(times), starts, of_work, 2)
    assert best is not None
    assert best.key == ("a", "default")
    equal = {"default": wiggles, "a": wiggles[::-1], "b": wiggles}
    assert best_start(start_samples(equal), starts, of_work, 2) is None


def test_a_row_that_is_not_faster_when_measured_again_is_dropped() -> None:
    of_work = work("all_reduce", sizes=(KIB, MIB))
    seconds = {"default": {0: 1.0, 1: 1.0}, "tree": {0: 0.5, 1: 1.0}, "few": {0: 1.0, 1: 0.5}}
    table, sizes, _ = choose_rows(measurements(seconds, of_work), START, of_work)
    assert [row.algorithm for row in table.rows] == ["tree", None]
    again = Measurements(
        samples=tuple(
            Repetition(start=name, candidate=name, case=case, round=number, seconds=value)
            for name, by_case in {"default": {0: 1.0, 1: 1.0}, "table": {0: 1.0, 1: 0.6}}.items()
            for case, value in by_case.items()
            for number in range(4)
        ),
        num_nodes=(1,),
    )
    results = confirmed(again, sizes, default=("default", "default"), chosen=("table", "table"), num_rounds=2)
    assert [size.confirmed_speedup for size in results] == [pytest.approx(1.0), pytest.approx(1 / 0.6)]
    kept, _ = without_lost_rows(table, results)
    assert [row.max_channels for row in kept.rows] == [2]


def test_the_order_of_candidates_changes_and_each_has_its_turn() -> None:
    orders = [rotated([0, 1, 2], number) for number in range(6)]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert {order[0] for order in orders} == {0, 1, 2}
    assert {order[-1] for order in orders} == {0, 1, 2}
    before = sum(order.index(0) < order.index(1) for order in orders)
    assert before == 3, "as often before another as after it"
    assert rotated([], 3) == []


def test_a_row_names_its_nodes_only_where_groups_differ_in_nothing_else() -> None:
    """NCCL counts two GPUs of one host as two nodes if they reach each other only by sockets: 2.28.9 on two H200."""
    one, other = GroupShape(groups=((0, 1),)), GroupShape(groups=((0, 2), (1, 3)))
    cases = tuple(Case(collective="all_reduce", shape=shape, num_bytes=MIB) for shape in (0, 1))
    of_both = CollectiveWork(shapes=(one, other), cases=cases, source="a test", is_standard=True)
    of_one = CollectiveWork(shapes=(one,), cases=cases[:1], source="a test", is_standard=True)
    seconds = {"default": {0: 1.0, 1: 1.0}, "tree": {0: 0.5, 1: 0.5}}
    measured = msgspec.structs.replace(measurements(seconds, of_both), num_nodes=(1, 2))
    table, _, _ = choose_rows(measured, START, of_both)
    assert [row.num_nodes for row in table.rows] == [1, 2]
    alone = measurements({name: {0: by_case[0]} for name, by_case in seconds.items()}, of_one)
    table, _, _ = choose_rows(alone, START, of_one)
    assert [row.num_nodes for row in table.rows] == [None]
    assert table.row_for("all_reduce", MIB, num_ranks=2, num_nodes=2) is not None
