"""Shanghai AI Laboratory's Acme (`trace_seren.csv`, `trace_kalos.csv`): job_id,user,node_num,gpu_num,...,gpu_time.

In: one cluster's trace. Out: jobs that ran from start_time to end_time (the `duration` of Kalos includes waiting); the
type of work (Pretrain, Evaluation, ...) is used as the team, because the trace has no teams. Jobs without GPUs, or that
never started, are skipped.
"""

from __future__ import annotations

from pathlib import Path

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import Skipped, number, rows
from flatout.schedule.load.times import time_s

COLUMNS = ("job_id", "user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped = Skipped()
    for line, row in rows(path, COLUMNS):
        name, user, gpu_num, kind, _, *time_texts = row
        num_gpus = number(path, line, "gpu_num", gpu_num) if gpu_num else 0.0
        if num_gpus <= 0:
            skipped.add("no GPUs")
            continue
        if not all(time_texts):
            skipped.add("never started or ended")
            continue
        submit_s, start_s, end_s = (
            time_s(path, line, column, text) for column, text in zip(COLUMNS[5:8], time_texts, strict=True)
        )
        if end_s <= start_s:
            skipped.add("no duration")
            continue
        job = ClusterJob(
            submit_s=min(submit_s, start_s),
            num_gpus=round(num_gpus),
            duration_s=end_s - start_s,
            name=name,
            user=user,
            team=kind,
        )
        jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="Acme", skipped=skipped.counts)
