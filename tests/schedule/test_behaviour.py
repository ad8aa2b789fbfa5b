"""What single policies and measures are for, on cases worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from flatout.errors import InputError
from flatout.records.replay import PolicyReplay
from flatout.schedule.cluster import Cluster, GpuType, Node, uniform
from flatout.schedule.differences import differences
from flatout.schedule.engine import FailureModel, Simulation
from flatout.schedule.fragments import FragmentPool
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.measures import PolicySamples, measure
from flatout.schedule.policies.default import Default
from flatout.schedule.policies.fifo import Fifo
from flatout.schedule.policies.fixed import shares
from flatout.schedule.policies.heterogeneity import Heterogeneity
from flatout.schedule.policies.names import make
from flatout.schedule.pool import Pool
from flatout.schedule.result import SimulationResult
from flatout.testing.policies import drawn_jobs

CHARGED = Assumptions(checkpoint_s=100.0, restart_s=10.0)


def job(submit_s: float, num_gpus: int, duration_s: float, **rest: object) -> ClusterJob:
    return ClusterJob(submit_s=submit_s, num_gpus=num_gpus, duration_s=duration_s, **rest)  # type: ignore[arg-type]


def run(name: str, jobs: list[ClusterJob], cluster: Cluster | None = None) -> SimulationResult:
    machine = cluster or uniform(1, 4)
    return Simulation(jobs, machine, make(name, jobs, machine), assumptions=CHARGED).run()


def measured(done: SimulationResult) -> PolicyReplay:
    return measure(done, "", seconds=1.0, starved_after_s=1000.0)


def test_a_higher_priority_stops_the_job_that_loses_least_and_pays_for_it() -> None:
    # The second job's last checkpoint is 40 s old at 240 s, the first one's as well but it holds more GPUs.
    done = run("priority", [job(0, 3, 500), job(0, 1, 500), job(240, 1, 50, priority=1)])
    assert done.finish_s[0] == 500
    assert done.finish_s[2] == 290
    # It did 200 s that count, starts again for 10 s at 290 s, and has 300 s to go.
    assert done.finish_s[1] == 600
    result = measured(done)
    assert (result.preemptions, result.lost_gpu_hours * 3600, result.restart_gpu_hours * 3600) == (1, 40, 10)


def test_shares_of_two_gpus_do_not_make_room_for_a_job_that_needs_one() -> None:
    # Each GPU is held by a share of low and one of high priority: stopping both of the low ones frees no whole GPU.
    shares = [job(n, 1, 1000, gpu_share=0.5, priority=priority) for n, priority in enumerate((0, 5, 0, 5))]
    done = run("priority", [*shares, job(240, 1, 50, priority=3)], uniform(1, 2))
    assert measured(done).preemptions == 0
    assert done.finish_s == [1000, 1001, 1002, 1003, 1051]


def test_a_share_that_is_alone_on_its_gpu_makes_room_for_a_job_that_needs_all_of_it() -> None:
    done = run("priority", [job(0, 1, 1000, gpu_share=0.5), job(240, 1, 50, priority=3)], uniform(1, 1))
    assert done.finish_s[1] == 290
    assert measured(done).preemptions == 1


@pytest.mark.parametrize("name", ["easy", "easy-oracle"])
def test_a_gpu_is_free_for_a_reservation_when_the_last_of_its_shares_ends(name: str) -> None:
    """Three shares on one GPU end at 100 s, but the wide job needs the GPUs of two that end at 1000 s."""
    small = [job(0, 1, 100, gpu_share=0.3, limit_s=100) for _ in range(3)]
    long = [job(0, 1, 1000, limit_s=1000) for _ in range(2)]
    wide, short = job(1, 4, 10, limit_s=10), job(2, 1, 500, limit_s=500)
    done = run(name, [*small, *long, wide, short])
    assert done.finish_s[-2:] == [1010, 502]
    assert measured(done).wait_mean_s == pytest.approx(999 / 7)


@pytest.mark.parametrize("name", ["easy", "easy-oracle"])
def test_more_shares_than_gpus_end_before_a_reservation(name: str) -> None:
    shares = [job(0, 1, 100, gpu_share=0.0625, limit_s=100) for _ in range(16)]
    long = [job(0, 1, 1000, limit_s=1000) for _ in range(2)]
    wide, short = job(1, 4, 10, limit_s=10), job(2, 1, 500, limit_s=500)
    assert run(name, [*shares, *long, wide, short]).finish_s[-2:] == [1010, 502]


@pytest.mark.parametrize("name", ["easy", "easy-oracle"])
def test_a_waiting_share_is_reserved_the_gpu_that_has_room_for_it_first(name: str) -> None:
    """The share fits beside another at 50 s, so that a job of 60 s must not take the GPU that is free then."""
    jobs = [
        *(
            job(0, 1, 300, limit_s=300),
            job(0, 1, 50, gpu_share=0.4, limit_s=50),
            job(0, 1, 90, gpu_share=0.4, limit_s=90),
        ),
        job(1, 1, 30, gpu_share=0.5, limit_s=30),  # at 50 s it has 0.6 of a GPU
        job(2, 1, 60, gpu_share=0.2, limit_s=60),  # 0.2 + 0.4 + 0.5 would be too much at 50 s
        job(3, 1, 60, gpu_share=0.1, limit_s=60),  # 0.1 + 0.4 + 0.5 is not
        job(4, 1, 40, gpu_share=0.1, limit_s=40),  # it ends before
    ]
    assert run(name, jobs, uniform(1, 2)).finish_s == [300, 50, 90, 80, 140, 63, 44]


def test_ten_tenths_of_a_gpu_are_a_gpu() -> None:
    """The sum of ten times 0.1 is a little less than 1."""
    done = run(
        "priority", [*(job(0, 1, 1000, gpu_share=0.1) for _ in range(10)), job(240, 1, 50, priority=3)], uniform(1, 1)
    )
    assert done.finish_s[-1] == 290


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["easy", "easy-oracle"])
def test_easy_ends_all_jobs_when_nodes_with_shares_fail(name: str, seed: int) -> None:
    failures = FailureModel(per_1000_node_days=20_000.0, repair_s=500.0, seed=seed)
    jobs = [job(20.0 * n, 1 + n % 4, 200.0 + 37 * (n % 7), gpu_share=0.1 if n % 4 == 0 else 1.0) for n in range(300)]
    machine = uniform(2, 4)
    done = Simulation(jobs, machine, make(name, jobs, machine), assumptions=CHARGED, failures=failures).run()
    assert done.num_failures > 0
    assert sorted(row.job for row in done.log if row.ending == "ended") == list(range(300))


def test_a_job_that_failures_never_let_end_is_refused() -> None:
    machine = uniform(8, 8)
    jobs = [job(0, 64, 100 * 86_400, checkpoint_s=1e9)]
    failures = FailureModel(per_1000_node_days=100.0)
    with pytest.raises(InputError, match="would never end: 10,000 failures stopped it"):
        Simulation(jobs, machine, make("fifo", jobs, machine), assumptions=CHARGED, failures=failures).run()


def test_an_owner_within_its_quota_gets_back_what_was_borrowed() -> None:
    cluster = Cluster(nodes=uniform(1, 4).nodes, quotas={"a": 2, "b": 2})
    done = run("quota", [job(0, 2, 100, team="b"), job(0, 2, 100, team="b"), job(10, 2, 100, team="a")], cluster)
    assert done.finish_s[2] == 110  # the second job of b had borrowed
    assert done.finish_s[0] == 100
    # Stopped at 10 s with nothing saved, it borrows again when the first ends.
    assert done.finish_s[1] == 100 + 10 + 100


class Reclaims(Default):
    """The default policy, but the only GPUs that it takes are idle ones."""

    preempts = False


def test_idle_gpus_are_reclaimed_and_the_job_returns_when_it_works_again() -> None:
    held = job(0, 4, 5150, phases=(100.0, 5000.0, 50.0))
    done = Simulation([held, job(10, 4, 1000)], uniform(1, 4), Reclaims(), assumptions=CHARGED).run()
    assert done.finish_s[1] == 100 + 900 + 1000
    # It works again at 5100 s: the restart, and nothing to do again, as its last checkpoint was when it got idle.
    assert done.finish_s[0] == 5100 + 10 + 50
    result = measured(done)
    assert result.idle_gpu_hours * 3600 == pytest.approx(4 * 900)
    assert result.useful_gpu_hours * 3600 == pytest.approx(4 * 1150)


def test_gpus_held_idle_to_the_end_count_as_idle() -> None:
    result = measured(run("fifo", [job(0, 2, 400, phases=(100.0, 300.0))], uniform(1, 2)))
    assert (result.utilization, result.goodput) == (1.0, 0.25)


def test_a_node_s_failure_costs_the_work_since_the_checkpoint_and_the_repair() -> None:
    failures = FailureModel(per_1000_node_days=40_000.0, repair_s=500.0, seed=1)
    done = Simulation([job(0, 4, 5000)], uniform(1, 4), Fifo(), assumptions=CHARGED, failures=failures).run()
    rows = done.log
    assert done.num_failures == len(rows) - 1 > 0
    for before, after in pairwise(rows):
        assert after.start_s == before.end_s + 500
        assert after.overhead_s == 10
        assert before.lost_s == pytest.approx((before.end_s - before.start_s - before.overhead_s) % 100)


def test_elastic_jobs_take_what_is_free_and_give_it_back() -> None:
    elastic = job(0, 2, 40_000, min_gpus=1, max_gpus=4, scaling=1.0)
    alone = run("goodput", [elastic, job(5000, 1, 10)])
    assert max(row.gpus for row in alone.log if row.job == 0) == 4
    assert alone.finish_s[0] < 40_000


def test_a_job_that_is_resized_counts_as_stopped() -> None:
    done = run("goodput", [job(0, 2, 20_000, min_gpus=1, max_gpus=4), job(4000, 2, 3000)])
    resized = sum(row.ending == "resized" for row in done.log)
    assert resized > 0
    assert measured(done).preemptions == resized


def test_the_linear_programme_puts_each_kind_on_the_type_it_gains_from() -> None:
    nodes = tuple(Node(name=str(n), num_gpus=2, gpu_type=kind) for n, kind in enumerate(("a", "b")))
    gains = [job(0, 2, 5000, type_speeds=(("a", 1.0), ("b", 4.0))) for _ in range(2)]
    even = [job(0, 2, 5000, type_speeds=(("a", 1.0), ("b", 1.0))) for _ in range(2)]
    jobs, cluster = gains + even, Cluster(nodes=nodes)
    policy = Heterogeneity()
    Simulation(jobs, cluster, policy).run()
    found = policy.solve([policy.kind(number) for number in range(4)])
    fast, slow = found[policy.kind(0)], found[policy.kind(2)]
    # An equal share is worth 2.5 to the first kind and 1 to the second. With a share b of the fast type each, and what
    # is left of it for the others, 4 b / 2.5 = 0.5 + (0.5 - b): both get 8/13 of an equal share's worth.
    assert fast == pytest.approx([0, 5 / 13], abs=1e-3)
    assert sum(slow) == pytest.approx(8 / 13, abs=1e-3)


def test_fifo_is_unfair_and_waits_where_nothing_is_free() -> None:
    result = measured(run("fifo", [job(0, 3, 100), job(0, 4, 100), job(0, 1, 10)]))
    assert (result.jct_mean_s, result.makespan_s) == (pytest.approx((100 + 200 + 210) / 3), 210)
    assert result.wait_mean_s == pytest.approx((0 + 100 + 200) / 3)
    assert result.fragmentation == pytest.approx(100 / (4 * 210))  # a GPU for 100 s, while two jobs waited
    assert result.utilization == pytest.approx((300 + 400 + 10) / (4 * 210))
    assert [size.gpus for size in result.wait_by_size] == ["1", "2-4"]
    assert len(result.series.allocated) == 240
    assert np.mean(result.series.allocated) == pytest.approx(710 / 210, rel=0.01)


def test_money_and_energy_are_by_type_and_unknown_where_a_type_is() -> None:
    known = GpuType(busy_w=500, idle_w=100, dollars_per_hour=2)
    result = measured(run("fifo", [job(0, 1, 3600, team="x")], uniform(1, 2, facts=known)))
    assert result.energy_kwh == pytest.approx(0.5 + 0.1)
    assert result.dollars == result.teams[0].dollars == pytest.approx(2.0)
    unknown = measured(run("fifo", [job(0, 1, 3600)], uniform(1, 2)))
    assert (unknown.energy_kwh, unknown.dollars) == (None, None)


def test_best_fit_leaves_whole_nodes_and_wide_jobs_stay_in_a_domain() -> None:
    nodes = [Node(name=str(n), num_gpus=4, domain=f"d{n // 2}") for n in range(4)]
    pool = Pool(nodes)
    assert [pool.take(1), pool.take(3), pool.take(1)] == [0, 0, 1]
    assert pool.take(8) == ((2, 4), (3, 4))
    pool.release(((2, 4), (3, 4)), 8)
    assert pool.take(10) is None or pool.num_free >= 0


def test_a_share_goes_to_the_gpu_where_fragments_grow_least() -> None:
    pool = FragmentPool([Node(name="n", num_gpus=2)])
    for _ in range(10):
        pool.tasks.see(1, 400)
    first, second, third = pool.take_share(600), pool.take_share(400), pool.take_share(400)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first[1] == second[1] != third[1]
    for place in (first, second, third):
        pool.release(place, 0)
    assert (pool.num_free, pool.partial, pool.take(2)) == (2, [], 0)


def test_fixed_shares_are_in_proportion_but_hold_the_widest_job() -> None:
    assert shares({"a": (750.0, 1), "b": (240.0, 1), "c": (10.0, 2)}, 10) == {"a": 6, "b": 2, "c": 2}
    with pytest.raises(InputError, match="4 in total, but the cluster has 3"):
        shares({"a": (1.0, 2), "b": (1.0, 2)}, 3)


def test_no_job_waits_longer_than_the_ageing_allows() -> None:
    """Wide jobs under a stream of small ones: the default serves them within its age limit, LAS does not."""
    small = [job(900.0 * number, 1, 3500, team="s") for number in range(4 * 24 * 12)]
    wide = [job(3600.0, 4, 30 * 3600, team="w"), job(3600.0, 4, 30 * 3600, team="w")]
    jobs = sorted(small + wide, key=lambda one: one.submit_s)
    waits = {}
    for name in ("flatout", "las"):
        result = measured(run(name, jobs))
        waits[name] = result.longest_wait_s
    assert waits["flatout"] <= Default.ageing_s + 2 * Default.quantum_s


def test_intervals_of_equal_policies_hold_one_and_of_a_better_one_do_not() -> None:
    random = np.random.default_rng(1)
    submit = np.sort(random.uniform(0, 1e7, 4000))
    times = random.lognormal(8, 1, 4000)
    outcomes = [
        [PolicySamples(jct_s=each, wait_s=each, lost_gpu_hours=each, goodput=np.ones(16))]
        for each in (times, times / 2, times.copy())
    ]
    better, same = differences(["a", "b", "c"], submit, outcomes)
    assert (better.verdict, better.ratio) == ("better", pytest.approx(2))
    assert better.low == pytest.approx(2)
    assert (same.verdict, same.low, same.high) == ("equivalent", 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_series_and_measures_agree_with_the_log(seed: int) -> None:
    jobs = [msgspec.structs.replace(one, gpu_types=()) for one in drawn_jobs(seed)]
    done = run("las", jobs, uniform(6, 4))
    result = measured(done)
    held = sum((row.end_s - row.start_s) * row.gpus for row in done.log)
    assert sum(result.series.allocated) * result.series.span_s == pytest.approx(held, rel=0.02)
    parts = result.useful_gpu_hours + result.idle_gpu_hours + result.lost_gpu_hours + result.restart_gpu_hours
    assert parts * 3600 == pytest.approx(held)
    teams = sum(team.useful_gpu_hours + team.idle_gpu_hours + team.lost_gpu_hours for team in result.teams)
    assert teams == pytest.approx(parts)
    assert math.isfinite(result.fairness_p99)


def test_a_job_prefers_the_node_that_holds_its_data_set_and_pays_for_a_copy_elsewhere() -> None:
    """Two nodes of 4 GPUs. The second job of each data set finds its copy, but one that must go elsewhere does not."""
    machine = uniform(2, 4)
    jobs = [
        job(0, 4, 100, dataset="a", stage_s=30),  # the first node; ends at 130
        job(0, 4, 200, dataset="b", stage_s=30),  # the second node; ends at 230
        job(300, 4, 50, dataset="b", stage_s=30),  # the second node, though the first is free too: 350
        job(310, 4, 50, dataset="b", stage_s=30),  # only the first node is free: 310 + 30 + 50
        job(500, 4, 50, dataset="b", stage_s=30),  # both hold it now
        job(600, 8, 50, dataset="a", stage_s=30),  # one of its two nodes holds it
        job(700, 4, 50),
    ]
    result = run("fifo", jobs, machine)
    assert result.finish_s == [130, 230, 350, 390, 550, 680, 750]
    overheads = [segment.overhead_s for segment in sorted(result.log, key=lambda segment: segment.job)]
    assert overheads == [30, 30, 0, 30, 0, 30, 0]


def test_jobs_on_shares_of_one_gpu_copy_their_data_set_once() -> None:
    half = job(0, 1, 100, gpu_share=0.5, dataset="a", stage_s=20)
    assert run("fifo", [half, half], uniform(2, 1)).finish_s == [120, 100]
