"""A slice of `benchmarks/schedule_sweep.py`: the default policy on short histories, at loads of one and two."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from benchmarks.schedule_histories import histories, job_of
from benchmarks.schedule_sweep import _mean_in_order, at_load, chosen_without, ratios, run

LOADS = (1.0, 2.0)
POLICIES = ("las", "srtf", "flatout")


def test_on_short_histories_the_default_is_near_the_better_of_las_and_srtf_and_starves_nobody() -> None:
    rows = [run(history, load, policy) for history in histories(None, 150) for load in LOADS for policy in POLICIES]
    table = ratios(rows, POLICIES)
    mean = math.exp(sum(math.log(line["flatout"]) for line in table) / len(table))
    assert mean < 1.0
    of_default = [row for row in rows if row["policy"] == "flatout"]
    assert sum(row["num_starved"] for row in of_default) == 0
    wasted = {
        name: sum(row["lost_gpu_hours"] + row["restart_gpu_hours"] for row in rows if row["policy"] == name)
        for name in POLICIES
    }
    assert wasted["flatout"] < wasted["las"]


@pytest.mark.parametrize("load", LOADS)
def test_a_history_is_replayed_at_the_load_that_is_wished(load: float) -> None:
    for history in histories(None, 100):
        jobs = at_load(history, load)
        work = sum(job.num_gpus * job.duration_s for job in jobs)
        span = jobs[-1].submit_s - jobs[0].submit_s
        assert work / (history.num_nodes * 8 * span) == pytest.approx(load)


def test_the_best_order_of_jobs_on_one_gpu_each_is_the_shortest_first() -> None:
    """Four jobs at once on four GPUs, then the others where the first one ends: by hand."""
    jobs = [job_of(0.0, 1, seconds, "u") for seconds in (10.0, 20.0, 30.0, 40.0, 50.0)]
    assert _mean_in_order(jobs, range(5)) == pytest.approx((10 + 20 + 30 + 40 + 60) / 5)
    assert _mean_in_order(jobs, (4, 3, 2, 1, 0)) == pytest.approx((50 + 40 + 30 + 20 + 30) / 5)
    wide = [job_of(0.0, 4, 100.0, "u"), job_of(0.0, 1, 10.0, "u"), job_of(0.0, 3, 20.0, "u")]
    assert min(_mean_in_order(wide, order) for order in itertools.permutations(range(3))) == pytest.approx(150 / 3)


def test_a_job_never_starts_before_one_that_is_ahead_of_it() -> None:
    draw = random.Random(1)
    for _ in range(50):
        jobs = [job_of(0.0, draw.choice([1, 2, 3, 4]), draw.uniform(10, 90), "u") for _ in range(6)]
        work = sum(job.num_gpus * job.duration_s for job in jobs)
        assert _mean_in_order(jobs, range(6)) * 6 >= work / 4


def test_rules_are_chosen_without_the_history_that_they_are_judged_on() -> None:
    even = {"x": 1.0, "y": 2.0}
    table = [{"history": "a", "x": 0.1, "y": 9.0, "median": even}, {"history": "b", "x": 2.0, "y": 1.0, "median": even}]
    assert chosen_without(table, "a", ["x", "y"]) == "y"
    assert chosen_without(table, "b", ["x", "y"]) == "x"


def test_rules_whose_median_is_more_than_twice_that_of_las_are_not_chosen() -> None:
    line = {"history": "a", "x": 0.9, "y": 1.0}
    assert chosen_without([line | {"median": {"x": 2.0, "y": 1.0}}], "b", ["x", "y"]) == "x"
    assert chosen_without([line | {"median": {"x": 2.1, "y": 1.0}}], "b", ["x", "y"]) == "y"
