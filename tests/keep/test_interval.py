"""The interval against the published table, the closed forms, and jobs that are simulated failure by failure."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.keep.interval import (
    DAY_S,
    LLAMA_3,
    RSC_1,
    Costs,
    FailureRate,
    best_interval,
    daly_s,
    expected_goodput,
    goodput,
    improvements,
    measured_costs,
    nvidia_s,
    published_ettr,
    young_s,
)

KNOWN = FailureRate(failures=1e9, node_days=1e9 / 6.5e-3, source="as if it were known")


def blocking(stall_s: float, restart_s: float = 600.0) -> Costs:
    """A checkpoint that is on the disk when the training goes on."""
    return Costs(stall_s=stall_s, write_s=stall_s, detect_s=0.0, restart_s=restart_s)


# Failure rate 6.5 per 1,000 node-days, 8 GPUs a node, restart 600 s: GPUs, hours between failures, write time, Young's
# interval in minutes, and the effective training time ratio there.
TABLE = [
    (512, 57.7, {5: (24, 0.990), 30: (59, 0.980), 120: (118, 0.964), 300: (186, 0.945)}),
    (1024, 28.8, {5: (17, 0.984), 30: (42, 0.971), 120: (83, 0.947), 300: (132, 0.921)}),
    (4096, 7.2, {5: (8.5, 0.958), 30: (21, 0.930), 120: (42, 0.886), 300: (66, 0.837)}),
    (16384, 1.8, {5: (4.2, 0.871), 30: (10, 0.820), 120: (21, 0.740), 300: (33, 0.656)}),
]
ROWS = [(gpus, hours, cost, *expected) for gpus, hours, row in TABLE for cost, expected in row.items()]


@pytest.mark.parametrize(("gpus", "hours", "cost", "minutes", "ratio"), ROWS)
def test_the_published_table(gpus: int, hours: float, cost: float, minutes: float, ratio: float) -> None:
    mean_s = 1 / (6.5e-3 * gpus / 8 / DAY_S)
    assert mean_s / 3600 == pytest.approx(hours, abs=0.06)
    interval_s = young_s(cost, mean_s)
    assert interval_s / 60 == pytest.approx(minutes, abs=0.05 if minutes < 10 else 0.5)  # as it is rounded
    assert published_ettr(interval_s, blocking(cost), 1 / mean_s) == pytest.approx(ratio, abs=0.0006)


def simulate(interval_s: float, costs: Costs, rate_per_s: float, generator: np.random.Generator, num: int) -> float:
    """Goodput of one long job. Time runs on from failure to failure; work counts from its committed checkpoint."""
    clock, saved, lag_s = 0.0, 0.0, max(costs.write_s - costs.stall_s, 0.0)
    for _ in range(num):
        until_failure = generator.exponential(1 / rate_per_s)
        down_s = costs.detect_s + costs.restart_s
        clock += until_failure
        if until_failure > down_s:
            # Checkpoint k is begun after k intervals and k - 1 stalls, and committed a write time later.
            at_work = until_failure - down_s
            num_committed = max(int((at_work - lag_s) // (interval_s + costs.stall_s)), 0)
            saved += num_committed * interval_s
    return saved / clock


@pytest.mark.parametrize("mean_h", [28.8, 7.2, 1.8])
@pytest.mark.parametrize("costs", [blocking(30.0), Costs(stall_s=1.0, write_s=90.0, detect_s=20.0, restart_s=300.0)])
def test_goodput_is_that_of_simulated_jobs(mean_h: float, costs: Costs) -> None:
    generator = np.random.default_rng(1)
    rate = 1 / (mean_h * 3600)
    interval_s = max(young_s(costs.stall_s, 1 / rate), 120.0)
    num = 40_000
    parts = [simulate(interval_s, costs, rate, generator, num // 20) for _ in range(20)]
    error = np.std(parts, ddof=1) / sqrt(20)
    # The lag of a background write is counted as if no failure came within it: a difference of second order.
    second_order = (rate * costs.write_s) ** 2
    assert goodput(interval_s, costs, rate) == pytest.approx(np.mean(parts), abs=4 * error + second_order)
    assert 4 * error < 0.006


@given(st.floats(0.5, 300), st.floats(1e5, 1e7))
def test_the_optimum_is_dalys_where_the_rate_is_known(cost: float, mean_s: float) -> None:
    rate = FailureRate(failures=1e9, node_days=1e9 * mean_s / DAY_S, source="known")
    found = best_interval(blocking(cost), rate, 1)
    at_daly = goodput(daly_s(cost, mean_s), blocking(cost), 1 / mean_s)
    assert found.goodput >= at_daly - 1e-6
    assert found.interval_s == pytest.approx(daly_s(cost, mean_s), rel=0.02)
    assert found.low_s <= found.interval_s <= found.high_s


@given(st.floats(0.5, 300), st.integers(1, 4096), st.floats(0.3, 8))
def test_no_other_interval_is_better(cost: float, num_nodes: int, factor: float) -> None:
    found = best_interval(blocking(cost), RSC_1, num_nodes)
    other = expected_goodput(found.interval_s * factor, blocking(cost), RSC_1.rates_per_s(num_nodes))
    assert other <= found.goodput + 1e-7


def test_nvidias_interval() -> None:
    assert nvidia_s(30, 100_000, 600) == pytest.approx(30 + sqrt(2 * 100_600 * 30 + 900))


def test_what_the_job_itself_has_seen_outweighs_what_was_published() -> None:
    assert LLAMA_3.mean == pytest.approx(3.79e-3)
    low, high = RSC_1.interval()
    assert low < 2.34e-3 < 6.5e-3 < high  # the other published clusters are within what is thought possible
    seen = RSC_1.after(40, 2_000.0)
    assert seen.mean == pytest.approx(42 / (2_000 + 2 / 6.5e-3))
    assert seen.interval()[1] - seen.interval()[0] < seen.mean
    none = RSC_1.after(0, 5_000.0)
    assert 0 < none.mean < 1e-3


def test_the_posterior_foretells_counts_as_the_gamma_poisson_mixture_does() -> None:
    from scipy.stats import nbinom  # takes seconds to import, which each worker that collects this file would spend

    rates = RSC_1.rates_per_s(128) * DAY_S * 10  # of the next ten days
    counts = np.arange(200)
    none = float(np.mean(np.exp(-rates)))
    exact = nbinom.pmf(0, RSC_1.failures, RSC_1.node_days / (RSC_1.node_days + 1280))
    assert none == pytest.approx(exact, abs=0.002)
    assert rates.mean() == pytest.approx(6.5e-3 * 1280)
    assert nbinom.pmf(counts, RSC_1.failures, RSC_1.node_days / (RSC_1.node_days + 1280)).sum() == pytest.approx(
        1, abs=1e-6
    )


def test_an_unsure_rate_costs_and_moves_the_interval_little() -> None:
    sure = best_interval(blocking(30), KNOWN, 512)
    unsure = best_interval(blocking(30), RSC_1, 512)
    assert unsure.goodput < sure.goodput + 0.02
    assert 0.5 < unsure.interval_s / sure.interval_s < 2


def test_no_failures_and_endless_failures() -> None:
    assert goodput(100.0, blocking(10), 0.0) == pytest.approx(100 / 110)
    assert goodput(1e6, blocking(10), 1.0) == pytest.approx(0.0)
    assert goodput(1.0, blocking(0.0, restart_s=0.0), 1e-9) == pytest.approx(1.0)
    assert goodput(100.0, blocking(10), 1e-3) == pytest.approx(0.1 * exp(-0.6) / (exp(0.11) - 1))


def test_at_16384_gpus_the_restart_time_matters_more_than_the_write_time() -> None:
    given = {"num_nodes": 2048, "gpus_per_node": 8, "hours": 24.0 * 30}
    found = improvements(blocking(5), KNOWN, price_per_gpu_hour=2.5, **given)
    assert [improvement.name for improvement in found][:2] == ["failure rate", "restart time"]
    assert all(improvement.money == pytest.approx(2.5 * improvement.gpu_hours) for improvement in found)
    # 600 s of restart every 1.8 h are 9.0 % of the time, of which half is to be had.
    restart = next(improvement for improvement in found if improvement.name == "restart time")
    assert restart.gpu_hours / (16384 * 24 * 30) == pytest.approx(0.0416, abs=0.006)
    small = improvements(blocking(300), KNOWN, num_nodes=64, gpus_per_node=8, hours=720.0)
    assert [improvement.name for improvement in small][:2] == ["failure rate", "write time"]
    assert all(improvement.money is None for improvement in small)


def test_costs_come_from_what_checkpoints_took() -> None:
    lines = [{"outcome": "committed", "stall_s": s, "until_committed_s": 10 * s} for s in (1.0, 2.0, 9.0)]
    found = measured_costs([{"outcome": "failed"}, *lines], detect_s=3.0, restart_s=4.0)
    assert found == Costs(stall_s=2.0, write_s=20.0, detect_s=3.0, restart_s=4.0)
    assert found.after_failure_s == 25.0
    assert measured_costs([{"outcome": "failed"}], detect_s=3.0, restart_s=4.0) is None


def test_slow_detection_is_named() -> None:
    costs = Costs(stall_s=1.0, write_s=60.0, detect_s=1800.0, restart_s=120.0)
    assert improvements(costs, KNOWN, num_nodes=128, gpus_per_node=8, hours=720.0)[0].name in (
        "detection time",
        "failure rate",
    )
    names = [one.name for one in improvements(costs, KNOWN, num_nodes=128, gpus_per_node=8, hours=720.0)]
    assert names.index("detection time") < names.index("restart time")
