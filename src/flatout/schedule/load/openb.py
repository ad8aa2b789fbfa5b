"""Alibaba's 2023 pods (clusterdata `openb`): name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,...

In: the list of pods, and for the cluster the list of nodes. Out: jobs that ran from scheduled_time to deletion_time; a
pod with one GPU can request thousandths of it. Pods without GPUs, and those that were never scheduled, are skipped.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.cluster import Cluster, Node
from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import Skipped, number, rows, whole

COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped = Skipped()
    for line, row in rows(path, COLUMNS):
        name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, creation, deletion, scheduled = row
        num_gpus = whole(path, line, "num_gpu", num_gpu)
        if num_gpus <= 0:
            skipped.add("no GPUs")
            continue
        if not deletion or not scheduled:
            skipped.add("never scheduled")
            continue
        start_s = number(path, line, "scheduled_time", scheduled)
        end_s = number(path, line, "deletion_time", deletion)
        if end_s <= start_s:
            skipped.add("no duration")
            continue
        gpu_share = 1.0
        if num_gpus == 1:
            gpu_share = min(1.0, number(path, line, "gpu_milli", gpu_milli) / 1000)
        job = ClusterJob(
            submit_s=number(path, line, "creation_time", creation),
            num_gpus=num_gpus,
            duration_s=end_s - start_s,
            name=name,
            team=qos,
            gpu_share=gpu_share,
            gpu_types=tuple(gpu_spec.split("|")) if gpu_spec else (),
            num_cpus=number(path, line, "cpu_milli", cpu_milli) / 1000,
            memory_bytes=number(path, line, "memory_mib", memory_mib) * 2**20,
        )
        jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="Alibaba 2023 (openb)", skipped=skipped.counts)


def nodes(path: Path) -> Cluster:
    """Read the cluster from a list of nodes; nodes without GPUs are skipped."""
    gpu_nodes = []
    for line, row in rows(path, NODE_COLUMNS):
        name, cpu_milli, memory_mib, gpu, model = row
        num_gpus = whole(path, line, "gpu", gpu)
        if num_gpus <= 0:
            continue
        node = Node(
            name=name,
            num_gpus=num_gpus,
            gpu_type=model,
            num_cpus=number(path, line, "cpu_milli", cpu_milli) / 1000,
            memory_bytes=number(path, line, "memory_mib", memory_mib) * 2**20,
        )
        gpu_nodes.append(node)
    return Cluster(nodes=tuple(gpu_nodes))
