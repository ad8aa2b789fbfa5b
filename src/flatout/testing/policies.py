"""The tests that each scheduling policy must pass: subclass `PolicyConformance` in a test file and override `make`.

    class TestFifo(PolicyConformance):
        def make(self, jobs, cluster):
            return Fifo()

The tests check the logs of simulated runs over random histories, with failures, GPU types, shared GPUs, elastic and
idle jobs: nothing is over-allocated, gangs are complete, runs repeat exactly, every job ends, every second of work is
accounted for, restarts and lost work are charged, and a policy that isn't an oracle doesn't act on what it can't know.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from flatout.schedule.cluster import Cluster, Node, uniform
from flatout.schedule.engine import FailureModel, Simulation
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, as_share, is_wide, nodes_of
from flatout.schedule.result import Segment, SimulationResult

ASSUMED = Assumptions(checkpoint_s=700.0, restart_s=90.0)
TEAMS = ("red", "green", "blue")


def drawn_jobs(seed: int, count: int = 60) -> list[ClusterJob]:
    """Return a random history with all kinds of jobs, in order of submission."""
    draw = random.Random(seed)
    jobs, now = [], 0.0
    for number in range(count):
        now += draw.choice([0.0, 0.0, 30.0, 400.0, 2500.0])
        gpus = draw.choice([1, 1, 1, 1, 2, 3, 4, 4, 6, 8])
        duration = draw.choice([20.0, 333.0, 1800.0, 7200.0, 40_000.0]) * draw.uniform(0.7, 1.3)
        is_light = gpus == 1 and draw.random() < 0.3
        is_elastic = gpus in (2, 4) and draw.random() < 0.4
        jobs.append(
            ClusterJob(
                submit_s=now,
                num_gpus=gpus,
                duration_s=duration,
                name=str(number),
                user=draw.choice("abc"),
                team=draw.choice(TEAMS),
                gpu_share=draw.choice([0.25, 0.5, 0.7]) if is_light else 1.0,
                gpu_types=("fast",) if gpus <= 4 and draw.random() < 0.1 else (),
                memory_bytes=2.0**40 if gpus <= 4 and number % 9 == 0 else 0.0,  # only fast nodes have so much
                type_speeds=(("fast", 1.5),) if draw.random() < 0.3 else (),
                priority=draw.choice([0, 0, 1, 5]),
                restart_s=draw.choice([None, None, 0.0, 300.0]),
                min_gpus=gpus // 2 if is_elastic else None,
                max_gpus=gpus * 2 if is_elastic else None,
                phases=_phases(draw, duration) if not is_elastic and draw.random() < 0.3 else (),
                utilization=draw.choice([None, 0.3, 0.9]),
            )
        )
    return jobs


def _phases(draw: random.Random, duration: float) -> tuple[float, ...]:
    cuts = sorted(draw.uniform(0, duration) for _ in range(draw.choice([1, 2, 3])))
    edges = [0.0, *cuts, duration]
    return tuple(end - start for start, end in pairwise(edges))


def drawn_cluster() -> Cluster:
    """Return nodes of two types in domains, with enough nodes for the widest job of each team."""
    slow = [
        Node(name=f"s{n}", num_gpus=4, gpu_type="slow", domain=f"d{n // 3}", memory_bytes=2.0**39) for n in range(9)
    ]
    fast = [Node(name=f"f{n}", num_gpus=4, gpu_type="fast", domain="f", memory_bytes=2.0**40) for n in range(3)]
    return Cluster(nodes=(*slow, *fast))


class PolicyConformance:
    """The conformance tests. Override `make`, and `seeds` to run more or fewer histories."""

    seeds: Sequence[int] = (1, 2, 3)

    def make(self, jobs: Sequence[ClusterJob], cluster: Cluster) -> Policy:
        raise NotImplementedError

    def jobs(self, seed: int) -> list[ClusterJob]:
        return drawn_jobs(seed)

    def cluster(self) -> Cluster:
        return drawn_cluster()

    def run_of(
        self, jobs: Sequence[ClusterJob], *, failures: float = 0.0, like: Sequence[ClusterJob] | None = None
    ) -> SimulationResult:
        cluster = self.cluster()
        policy = self.make(like or jobs, cluster)
        drawn = FailureModel(per_1000_node_days=failures, repair_s=1800.0, seed=7) if failures else None
        return Simulation(jobs, cluster, policy, assumptions=ASSUMED, failures=drawn).run()

    def runs(self) -> list[SimulationResult]:
        return [self.run_of(self.jobs(seed), failures=rate) for seed in self.seeds for rate in (0.0, 3000.0)]

    def test_every_job_ends_once_and_not_before_it_can(self) -> None:
        for run in self.runs():
            for job, finish in zip(run.jobs, run.finish_s, strict=True):
                fastest = max((speed for _, speed in job.type_speeds), default=1.0)
                if job.max_gpus is not None:
                    fastest = max(1.0, fastest) * (job.max_gpus / job.num_gpus) ** job.scaling
                work = sum(job.phases[::2]) if job.phases else job.duration_s
                assert finish >= job.submit_s + work / max(1.0, fastest) - 1e-6
            ends = [row.job for row in run.log if row.ending == "ended"]
            assert len(ends) == len(set(ends))

    def test_no_gpu_is_given_twice(self) -> None:
        for run in self.runs():
            changes: list[tuple[float, int, int, float]] = []
            for row in run.log:
                for node, count in nodes_of(row.placement, row.gpus):
                    changes += [(row.end_s, 0, node, -count), (row.start_s, 1, node, count)]
            used = [0.0] * len(run.cluster.nodes)
            for _, _, node, count in sorted(changes):
                used[node] += count
                assert used[node] <= run.cluster.nodes[node].num_gpus + 1e-6
            assert max(map(abs, used)) < 1e-6

    def test_shares_of_a_gpu_are_at_most_the_gpu_and_count_as_one_gpu_of_their_node(self) -> None:
        for run in self.runs():
            changes: list[tuple[float, int, Segment]] = []
            for row in run.log:
                changes += [(row.end_s, 0, row), (row.start_s, 1, row)]
            whole = [0.0] * len(run.cluster.nodes)
            shares: dict[tuple[int, int], int] = {}  # thousandths in use, by node and shared GPU
            for _, is_start, row in sorted(changes, key=lambda change: change[:2]):
                sign = 1 if is_start else -1
                if isinstance(row.placement, int) or is_wide(row.placement):
                    for node, count in nodes_of(row.placement, row.gpus):
                        whole[node] += sign * count
                else:
                    node, slot, milli = as_share(row.placement)
                    shares[node, slot] = shares.get((node, slot), 0) + sign * milli
                    assert 0 <= shares[node, slot] <= WHOLE
                for node, _ in nodes_of(row.placement, row.gpus):
                    num_shared = sum(used > 0 for (other, _), used in shares.items() if other == node)
                    assert whole[node] + num_shared <= run.cluster.nodes[node].num_gpus + 1e-6

    def test_a_gang_is_whole_and_on_nodes_that_it_may_use(self) -> None:
        for run in self.runs():
            for row in run.log:
                job, pieces = run.jobs[row.job], nodes_of(row.placement, row.gpus)
                held = sum(count for _, count in pieces)
                assert abs(held - row.gpus) < 1e-3
                asked = job.num_gpus * job.gpu_share
                low = min(asked, job.min_gpus or asked, 0.5 if job.utilization is not None else asked)
                assert low - 1e-3 <= held <= max(asked, job.max_gpus or 0) + 1e-3
                types = {run.cluster.nodes[node].gpu_type for node, _ in pieces}
                assert len(types) == 1
                assert not job.gpu_types or types <= set(job.gpu_types)
                memory = min(run.cluster.nodes[node].memory_bytes or 0.0 for node, _ in pieces)
                assert memory >= job.memory_bytes

    def test_a_job_is_in_one_place_at_a_time_and_not_before_it_came(self) -> None:
        for run in self.runs():
            for job, rows in _by_job(run).items():
                assert rows[0].start_s >= run.jobs[job].submit_s
                for before, after in pairwise(rows):
                    assert before.end_s <= after.start_s + 1e-9

    def test_the_parts_of_each_segment_sum_to_it(self) -> None:
        for run in self.runs():
            for row in run.log:
                parts = (row.overhead_s, row.lost_s, row.idle_s, row.useful_s)
                assert min(parts) >= -1e-6
                assert abs(sum(parts) - (row.end_s - row.start_s)) < 1e-6

    def test_no_work_is_made_or_lost_unaccounted(self) -> None:
        """The work that was kept, at the speed at which it was done, is the work that the job needed."""
        for run in self.runs():
            for job, rows in _by_job(run).items():
                phases = run.jobs[job].phases
                needed = sum(phases[::2]) if phases else run.jobs[job].duration_s
                done = sum(row.useful_s * row.speed for row in rows)
                assert abs(done - needed) <= 1e-6 * needed + 1e-3, (run.jobs[job], rows)

    def test_restarts_and_lost_work_are_charged(self) -> None:
        for run in self.runs():
            for job, rows in _by_job(run).items():
                given = run.jobs[job]
                restart = ASSUMED.restart_s if given.restart_s is None else given.restart_s
                assert rows[0].overhead_s == 0
                for row in rows[1:]:
                    assert row.overhead_s >= restart - 1e-6 or (row.ending != "ended" and row.useful_s <= 1e-6)
                for row in rows:
                    if row.ending in ("preempted", "failed", "resized"):
                        worked = row.end_s - row.start_s - row.overhead_s
                        kept = worked - row.lost_s
                        remainder = kept % ASSUMED.checkpoint_s
                        assert min(remainder, ASSUMED.checkpoint_s - remainder) < 1e-3
                        assert row.lost_s < ASSUMED.checkpoint_s + 1e-6

    def test_a_run_repeats_exactly(self) -> None:
        jobs = self.jobs(self.seeds[0])
        assert self.run_of(jobs, failures=3000.0).log == self.run_of(jobs, failures=3000.0).log

    def test_decisions_do_not_rest_on_durations_that_nobody_knows(self) -> None:
        for seed in self.seeds:
            jobs = [msgspec.structs.replace(job, phases=()) for job in self.jobs(seed)]
            if self.make(jobs, self.cluster()).is_oracle:
                return
            first = self.run_of(jobs)
            time = sorted(first.finish_s)[len(jobs) // 2]
            begun = {row.job for row in first.log if row.start_s < time}
            changed = [
                job if finish <= time else msgspec.structs.replace(job, duration_s=_other(job, number in begun))
                for number, (job, finish) in enumerate(zip(jobs, first.finish_s, strict=True))
            ]
            second = self.run_of(changed, like=jobs)
            assert _starts(first, time) == _starts(second, time)

    def test_an_empty_cluster_starts_a_job_at_once(self) -> None:
        job = ClusterJob(submit_s=5.0, num_gpus=2, duration_s=100.0, team="red")
        cluster = uniform(4, 4)
        run = Simulation([job], cluster, self.make([job], cluster)).run()
        assert run.log[0].start_s == 5.0
        assert run.finish_s == [105.0]


def _other(job: ClusterJob, is_begun: bool) -> float:
    """Return another duration for an unfinished job: longer if it has begun; otherwise long and short are swapped."""
    return job.duration_s * 3 + 1000.0 if is_begun else 1e7 / job.duration_s


def _by_job(run: SimulationResult) -> dict[int, list[Segment]]:
    found: dict[int, list[Segment]] = {}
    for row in sorted(run.log, key=lambda row: (row.job, row.start_s, row.end_s)):
        found.setdefault(row.job, []).append(row)
    return found


def _starts(run: SimulationResult, before: float) -> list[tuple[float, int, object]]:
    return sorted((row.start_s, row.job, row.placement) for row in run.log if row.start_s < before)
