"""What jobs need of a node besides GPUs, and which field rules out a job that can never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.schedule.cluster import Cluster, read_cluster
from flatout.schedule.engine import Simulation
from flatout.schedule.jobs import ClusterJob
from flatout.schedule.load.detect import load
from flatout.schedule.policies.names import POLICIES, make
from flatout.schedule.pool import nodes_of
from flatout.schedule.replay import replay, runnable

CLUSTER = """
[[nodes]]
count = 3
gpus = 8
type = "A100"
gpu_memory_gib = 40
memory_gib = 512
cpus = 64
network_gbit_per_s = 100

[[nodes]]
count = 2
gpus = 8
type = "H100"
gpu_memory_gib = 80
memory_gib = 2048
cpus = 192
network_gbit_per_s = 400
"""
OLD, NEW = {0, 1, 2}, {3, 4}  # the nodes of each type
ALL = OLD | NEW
HEADER = "submit_s,num_gpus,duration_s,name,gpu_share,gpu_types,gpu_memory_gib,memory_gib,cpus,network_gbit_per_s\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    return read_cluster(path)


def jobs_of(tmp_path: Path, *rows: str) -> tuple[ClusterJob, ...]:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return load(path).jobs


def nodes_used(cluster: Cluster, job: ClusterJob) -> set[int]:
    """Return the nodes on which fifo starts copies of a job, until no copy fits beside the others."""
    jobs = [job] * 96
    log = Simulation(jobs, cluster, make("fifo", jobs, cluster)).run().log
    return {node for row in log for node, _ in nodes_of(row.placement, row.gpus)}


@pytest.mark.parametrize(
    ("row", "nodes"),
    [
        ("0,8,10,a,,,,,,", ALL),
        ("0,8,10,a,,,40,,,", ALL),
        ("0,8,10,a,,,40.1,,,", NEW),
        ("0,8,10,a,,,80,,,", NEW),
        ("0,1,10,a,0.5,,20,,,", ALL),
        ("0,1,10,a,0.5,,21,,,", NEW),  # half of a GPU of 40 GiB has 20
        ("0,8,10,a,,,,512,,", ALL),
        ("0,8,10,a,,,,513,,", NEW),
        ("0,8,10,a,,,,,64,", ALL),
        ("0,8,10,a,,,,,65,", NEW),
        ("0,16,10,a,,,,,,100", {0, 1} | NEW),
        ("0,16,10,a,,,,,,200", NEW),
        ("0,8,10,a,,A100,30,,,", OLD),
    ],
)
def test_a_job_runs_only_on_nodes_that_have_what_it_needs(
    tmp_path: Path, cluster: Cluster, row: str, nodes: set[int]
) -> None:
    (job,) = jobs_of(tmp_path, row)
    assert nodes_used(cluster, job) == nodes


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_honours_the_needs_of_jobs(tmp_path: Path, cluster: Cluster, policy: str) -> None:
    jobs = jobs_of(
        tmp_path,
        *(f"{n},{1 + n % 8},{100 + n},small{n},,,,,," for n in range(20)),
        *(f"{n},8,300,memory{n},,,60,,," for n in range(4)),
        *(f"{n},8,300,host{n},,,,1000,," for n in range(4)),
        *(f"{n},8,300,old{n},,A100,,,," for n in range(4)),
        *(f"{n},1,300,half{n},0.5,,30,,," for n in range(4)),
    )
    log = Simulation(jobs, cluster, make(policy, jobs, cluster)).run().log
    assert {row.job for row in log} == set(range(len(jobs)))
    for row in log:
        job = jobs[row.job]
        nodes = [cluster.nodes[node] for node, _ in nodes_of(row.placement, row.gpus)]
        assert all(node.gpu_memory_bytes * job.gpu_share >= job.gpu_memory_bytes for node in nodes)  # type: ignore[operator]
        assert all(node.memory_bytes >= job.memory_bytes for node in nodes)  # type: ignore[operator]
        assert all(not job.gpu_types or node.gpu_type in job.gpu_types for node in nodes)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("0,64,10,a,,,,,,", "num_gpus (40 GPUs on 5 nodes)"),
        ("0,8,10,a,,V100,,,,", "gpu_types (too few GPUs of type V100)"),
        ("0,24,10,a,,H100,,,,", "gpu_types (too few GPUs of type H100)"),
        ("0,8,10,a,,,96,,,", "gpu_memory_gib (at most 80 "),
        ("0,8,10,a,,A100,80,,,", "gpu_memory_gib (at most 80 "),
        ("0,1,10,a,0.25,,30,,,", "gpu_memory_gib (at most 80 "),
        ("0,24,10,a,,,80,,,", "gpu_memory_gib (at most 80 on a node, or too few nodes that have enough)"),
        ("0,8,10,a,,,,4096,,", "memory_gib (at most 2048 "),
        ("0,8,10,a,,,,,256,", "cpus (at most 192 "),
        ("0,16,10,a,,,,,,800", "network_gbit_per_s (at most 400 "),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_the_field(
    tmp_path: Path, cluster: Cluster, row: str, field: str
) -> None:
    jobs = jobs_of(tmp_path, row, "0,1,10,b,,,,,,")
    (reason,) = replay(load(tmp_path / "jobs.csv"), cluster, ["fifo"]).left_out
    assert reason.startswith(f"requests more than the cluster has: {field}")
    with pytest.raises(InputError) as refused:
        Simulation(jobs, cluster, make("fifo", jobs, cluster))
    assert field in str(refused.value)


def test_needs_that_no_node_meets_together_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "[[nodes]]\ngpus = 8\ngpu_memory_gib = 80\nmemory_gib = 256\n"
        "[[nodes]]\ngpus = 8\ngpu_memory_gib = 40\nmemory_gib = 1024\n"
    )
    jobs_of(tmp_path, "0,8,10,a,,,80,1024,,", "0,1,10,b,,,,,,")
    _, skipped = runnable(load(tmp_path / "jobs.csv"), read_cluster(path))
    assert skipped == {"requests more than the cluster has: gpu_memory_gib and memory_gib together": 1}


def test_what_nodes_do_not_state_is_assumed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("[[nodes]]\ncount = 3\ngpus = 8\n[[nodes]]\ngpus = 8\ngpu_memory_gib = 40\n")
    jobs_of(tmp_path, "0,8,10,a,,,80,,,")
    result = replay(load(tmp_path / "jobs.csv"), read_cluster(path), ["fifo"])
    assert result.left_out == {}
    assert "3 of 4 nodes do not state gpu_memory_gib: they are assumed to have enough" in result.assumptions
