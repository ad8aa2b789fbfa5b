"""SenseTime's Helios (`cluster_log.csv`): job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,...,duration,queue.

In: one cluster's log. Out: jobs; the virtual cluster is the team. Jobs without GPUs are left out.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out, number, rows, whole
from flatout.schedule.load.times import time_s

COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "duration", "queue")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped: dict[str, int] = {}
    for line, row in rows(path, COLUMNS):
        gpus = whole(path, line, "gpu_num", row[3])
        duration_s = number(path, line, "duration", row[8]) if row[8] else 0.0
        if gpus <= 0 or duration_s <= 0:
            left_out(skipped, "no GPUs" if gpus <= 0 else "no duration")
            continue
        submit_s = time_s(path, line, "submit_time", row[7])
        job = ClusterJob(submit_s=submit_s, num_gpus=gpus, duration_s=duration_s, name=row[0], user=row[1], team=row[2])
        jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="Helios", left_out=skipped)
