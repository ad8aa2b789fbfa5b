"""Microsoft's Philly jobs, as Sia's artifact extracted them: timestamp,duration,num_gpus,gpu_time,cluster.

In: a CSV, gzipped or not. Out: jobs; `cluster` (a virtual cluster) is the team. It names no users, failures or types.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import Skipped, number, rows, whole
from flatout.schedule.load.times import time_s

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped = Skipped()
    for line, row in rows(path, COLUMNS):
        timestamp, duration, num_gpus_text, _, virtual_cluster = row
        duration_s = number(path, line, "duration", duration)
        num_gpus = whole(path, line, "num_gpus", num_gpus_text)
        if num_gpus <= 0:
            skipped.add("no GPUs")
            continue
        if duration_s <= 0:
            skipped.add("no duration")
            continue
        submit_s = time_s(path, line, "timestamp", timestamp)
        jobs.append(ClusterJob(submit_s=submit_s, num_gpus=num_gpus, duration_s=duration_s, team=virtual_cluster))
    return JobHistory(jobs=by_submission(jobs), source="Philly (Sia's extract)", skipped=skipped.counts)
