"""Alibaba's 2023 pods (clusterdata `openb`): name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,...

In: the list of pods, and for the cluster the list of nodes. Out: jobs that ran from scheduled_time to deletion_time; a
pod of one GPU may ask for thousandths of it. Pods without GPUs, and those that were never scheduled, are left out.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.cluster import Cluster, Node
from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out, number, rows, whole

COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped: dict[str, int] = {}
    for line, row in rows(path, COLUMNS):
        gpus = whole(path, line, "num_gpu", row[3])
        if gpus <= 0:
            left_out(skipped, "no GPUs")
            continue
        if not row[8] or not row[9]:
            left_out(skipped, "never scheduled")
            continue
        started_s, ended_s = number(path, line, "scheduled_time", row[9]), number(path, line, "deletion_time", row[8])
        if ended_s <= started_s:
            left_out(skipped, "no duration")
            continue
        jobs.append(
            ClusterJob(
                submit_s=number(path, line, "creation_time", row[7]),
                num_gpus=gpus,
                duration_s=ended_s - started_s,
                name=row[0],
                team=row[6],
                gpu_share=min(1.0, number(path, line, "gpu_milli", row[4]) / 1000) if gpus == 1 else 1.0,
                gpu_types=tuple(row[5].split("|")) if row[5] else (),
                num_cpus=number(path, line, "cpu_milli", row[1]) / 1000,
                memory_bytes=number(path, line, "memory_mib", row[2]) * 2**20,
            )
        )
    return JobHistory(jobs=by_submission(jobs), source="Alibaba 2023 (openb)", left_out=skipped)


def nodes(path: Path) -> Cluster:
    """The cluster of a list of nodes."""
    found = []
    for line, row in rows(path, NODE_COLUMNS):
        gpus = whole(path, line, "gpu", row[3])
        if gpus > 0:
            found.append(
                Node(
                    name=row[0],
                    num_gpus=gpus,
                    gpu_type=row[4],
                    num_cpus=number(path, line, "cpu_milli", row[1]) / 1000,
                    memory_bytes=number(path, line, "memory_mib", row[2]) * 2**20,
                )
            )
    return Cluster(nodes=tuple(found))
