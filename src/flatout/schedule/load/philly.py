"""Microsoft's Philly jobs, as Sia's artifact extracted them: timestamp,duration,num_gpus,gpu_time,cluster.

In: a CSV, gzip or not. Out: jobs; `cluster` (a virtual cluster) is the team. No users, failures or types are in it.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out, number, rows, whole
from flatout.schedule.load.times import time_s

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped: dict[str, int] = {}
    for line, row in rows(path, COLUMNS):
        duration_s, gpus = number(path, line, "duration", row[1]), whole(path, line, "num_gpus", row[2])
        if duration_s <= 0 or gpus <= 0:
            left_out(skipped, "no duration" if gpus > 0 else "no GPUs")
            continue
        submit_s = time_s(path, line, "timestamp", row[0])
        jobs.append(ClusterJob(submit_s=submit_s, num_gpus=gpus, duration_s=duration_s, team=row[4]))
    return JobHistory(jobs=by_submission(jobs), source="Philly (Sia's extract)", left_out=skipped)
