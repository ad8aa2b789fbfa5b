"""Shanghai AI Laboratory's Acme (`trace_seren.csv`, `trace_kalos.csv`): job_id,user,node_num,gpu_num,...,gpu_time.

In: one cluster's trace. Out: jobs that ran from start_time to end_time (the `duration` of Kalos includes waiting); the
type of work (Pretrain, Evaluation, ...) is the team, as the trace has no other. Jobs without GPUs, or that never
started, are left out.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out, number, rows
from flatout.schedule.load.times import time_s

COLUMNS = ("job_id", "user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped: dict[str, int] = {}
    for line, row in rows(path, COLUMNS):
        gpus = number(path, line, "gpu_num", row[2]) if row[2] else 0.0
        if gpus <= 0:
            left_out(skipped, "no GPUs")
            continue
        if not all(row[5:8]):
            left_out(skipped, "never started or ended")
            continue
        times = [time_s(path, line, column, text) for column, text in zip(COLUMNS[5:8], row[5:8], strict=True)]
        if times[2] <= times[1]:
            left_out(skipped, "no duration")
            continue
        jobs.append(
            ClusterJob(
                submit_s=min(times[0], times[1]),
                num_gpus=round(gpus),
                duration_s=times[2] - times[1],
                name=row[0],
                user=row[1],
                team=row[3],
            )
        )
    return JobHistory(jobs=by_submission(jobs), source="Acme", left_out=skipped)
