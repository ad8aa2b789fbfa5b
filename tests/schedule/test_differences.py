"""Each measure's interval against a bootstrap in plain Python, and cases whose answer is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from flatout.records.replay import MeasureDifference
from flatout.schedule.cluster import uniform
from flatout.schedule.differences import differences, window_edges, windows
from flatout.schedule.engine import Simulation
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.measures import Columns, PolicySamples, measure, policy_samples
from flatout.schedule.policies.names import make

SUBMIT = np.sort(np.random.default_rng(5).uniform(0, 1e6, 300))


def drawn(seed: int, times: float = 1.0) -> PolicySamples:
    draw = np.random.default_rng(seed)
    jct = draw.lognormal(8, 1, len(SUBMIT)) * times
    return PolicySamples(
        jct_s=jct,
        wait_s=jct * draw.uniform(0, 0.5, len(jct)),
        lost_gpu_hours=draw.exponential(2 * times, len(jct)),
        goodput=draw.uniform(0.4, 0.8, 10) / times,
    )


def compared(baseline: Sequence[PolicySamples], policy: Sequence[PolicySamples]) -> dict[str, MeasureDifference]:
    (found,) = differences(["fifo", "other"], SUBMIT, [baseline, policy])
    return {one.measure: one for one in found.measures}


def interval(one: MeasureDifference) -> tuple[float, float]:
    assert one.low is not None
    assert one.high is not None
    return one.low, one.high


def test_every_interval_is_that_of_a_plain_bootstrap() -> None:
    """Resamples written out window by window; other random numbers, so the ends agree within their own noise."""
    policies = [[drawn(1), drawn(2)], [drawn(3, 1.5), drawn(4, 1.5)]]
    window = windows(SUBMIT)
    jobs = [np.flatnonzero(window == each) for each in range(10)]
    draw = random.Random(11)
    resamples: dict[str, list[float]] = {name: [] for name in ("jct_mean", "jct_p99", "wait_mean", "goodput", "lost")}
    for _ in range(1500):
        seeds = [draw.randrange(2) for _ in range(2)]
        chosen = [draw.randrange(10) for _ in range(10)]
        cells = [(seed, each) for seed in seeds for each in chosen]
        sides = []
        for policy in policies:
            jct = np.concatenate([policy[seed].jct_s[jobs[each]] for seed, each in cells])
            wait = np.concatenate([policy[seed].wait_s[jobs[each]] for seed, each in cells])
            lost = sum(policy[seed].lost_gpu_hours[jobs[each]].sum() for seed, each in cells) / 2
            goodput = sum(policy[seed].goodput[each] for seed, each in cells) / 20
            sides.append((jct.mean(), np.quantile(jct, 0.99), wait.mean(), goodput, lost))
        (one, other) = sides
        for place, (name, values) in enumerate(resamples.items()):
            values.append(one[place] / other[place] if name.startswith("jct") else other[place] - one[place])
    found = compared(*policies)
    for name, values in resamples.items():
        low, high = np.quantile(values, [0.025, 0.975])
        assert interval(found[name]) == pytest.approx((low, high), abs=0.12 * (high - low)), name


def test_the_percentile_of_a_large_history_is_that_of_its_jobs() -> None:
    """More values than the grid has: twice as slow is still twice as slow, in each resample."""
    global_submit = np.sort(np.random.default_rng(6).uniform(0, 1e6, 6000))
    jct = np.random.default_rng(7).lognormal(8, 2, 6000)
    one = PolicySamples(jct_s=jct, wait_s=jct, lost_gpu_hours=jct, goodput=np.linspace(0.5, 0.6, 10))
    (found,) = differences(["a", "b"], global_submit, [[one], [one._replace(jct_s=jct * 2)]])
    p99 = found.measures[1]
    assert (p99.value, p99.low, p99.high) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5))


def test_equal_policies_hold_no_difference_in_any_interval() -> None:
    found = compared([drawn(1)], [drawn(1)])
    for one in found.values():
        low, high = interval(one)
        none = 1.0 if one.unit == "ratio" else 0.0
        assert low <= none <= high
        assert one.value == pytest.approx(none)


def test_a_policy_twice_as_slow() -> None:
    one = drawn(1)
    slow = PolicySamples(one.jct_s * 2, one.wait_s + 100, one.lost_gpu_hours + 1, one.goodput / 2)
    found = compared([one], [slow])
    assert interval(found["jct_mean"]) == pytest.approx((0.5, 0.5))
    assert interval(found["jct_p99"]) == pytest.approx((0.5, 0.5))
    assert interval(found["wait_mean"]) == pytest.approx((100, 100))
    assert found["lost"].value == pytest.approx(len(SUBMIT))
    assert found["goodput"].value == pytest.approx(-one.goodput.mean() / 2)
    low, high = interval(found["goodput"])
    assert low < -one.goodput.mean() / 2 < high < 0


def test_what_has_no_variance_has_no_interval_and_says_why() -> None:
    none = np.zeros(len(SUBMIT))
    found = compared([drawn(1)._replace(lost_gpu_hours=none)], [drawn(2)._replace(lost_gpu_hours=none)])
    assert (found["lost"].value, found["lost"].low, found["lost"].high) == (0, None, None)
    assert "the same in every window" in (found["lost"].reason or "")
    assert found["wait_mean"].low is not None


def test_jobs_that_came_at_once_give_no_interval() -> None:
    one = drawn(1)._replace(goodput=np.full(10, np.nan))
    slow = one._replace(jct_s=one.jct_s * 2)
    (found,) = differences(["a", "b"], np.zeros(len(SUBMIT)), [[one], [slow]])
    assert (found.ratio, found.low, found.high, found.verdict) == (pytest.approx(0.5), None, None, "undecided")
    assert all(each.low is None and each.high is None and each.reason for each in found.measures)
    assert found.measures[3].value is None


def test_outcomes_of_a_run_are_those_of_its_log() -> None:
    jobs = [ClusterJob(submit_s=number * 500.0, num_gpus=1 + number % 4, duration_s=3000.0) for number in range(40)]
    machine = uniform(2, 4)
    run = Simulation(jobs, machine, make("las", jobs, machine), assumptions=Assumptions()).run()
    columns = Columns(run)
    edges = window_edges(columns.submit)
    found = policy_samples(run, columns, edges)
    whole = measure(run, "", seconds=1.0, starved_after_s=1e9)
    assert found.wait_s.mean() == pytest.approx(whole.wait_mean_s)
    assert found.lost_gpu_hours.sum() == pytest.approx(whole.lost_gpu_hours + whole.restart_gpu_hours)
    for start, end, share in zip(edges[:-1], edges[1:], found.goodput, strict=True):
        useful = 0.0
        for segment in columns.segments:
            held = segment.end_s - segment.start_s
            overlap = max(0.0, min(end, segment.end_s) - max(start, segment.start_s))
            work = held - segment.overhead_s - segment.lost_s - segment.idle_s
            useful += overlap / held * work * segment.gpus if held else 0.0
        assert share == pytest.approx(useful / (8 * (end - start)))


def test_jobs_in_four_windows_are_too_few() -> None:
    submit = np.repeat([0.0, 2e5, 5e5, 1e6], len(SUBMIT) // 4)
    (found,) = differences(["a", "b"], submit, [[drawn(1)], [drawn(2)]])
    assert found.verdict == "undecided"
    for one in found.measures:
        assert (one.low, one.high) == (None, None)
        assert one.reason == "jobs were submitted in 4 of 10 windows; an interval needs 5"
