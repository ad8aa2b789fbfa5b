"""SenseTime's Helios (`cluster_log.csv`): job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,...,duration,queue.

In: one cluster's log. Out: jobs; the virtual cluster is the team. Jobs without GPUs are skipped.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import Skipped, number, rows, whole
from flatout.schedule.load.times import time_s

COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "duration", "queue")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped = Skipped()
    for line, row in rows(path, COLUMNS):
        name, user, virtual_cluster, gpu_num, _, _, _, submit_time, duration, _ = row
        num_gpus = whole(path, line, "gpu_num", gpu_num)
        duration_s = number(path, line, "duration", duration) if duration else 0.0
        if num_gpus <= 0:
            skipped.add("no GPUs")
            continue
        if duration_s <= 0:
            skipped.add("no duration")
            continue
        job = ClusterJob(
            submit_s=time_s(path, line, "submit_time", submit_time),
            num_gpus=num_gpus,
            duration_s=duration_s,
            name=name,
            user=user,
            team=virtual_cluster,
        )
        jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="Helios", skipped=skipped.counts)
