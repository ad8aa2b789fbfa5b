"""Queue one command on the available scheduler, Slurm or Ray, or write a manifest for Kubernetes.

`job_request` turns the options into a `JobRequest`, `prepare` finds the scheduler and prepares the job, for which each
scheduler has a file, and `submit` submits it. Nothing is overwritten: each submission has its own folder, with the
submitted files, the output and the exit code.
"""

from __future__ import annotations

from flatout.records.submission import Submitted
from flatout.submit.find import found_schedulers
from flatout.submit.job import JobRequest, Prepared
from flatout.submit.options import KeepOptions, PodOptions, SubmitOptions
from flatout.submit.queue import prepare, submit, submitted
from flatout.submit.request import job_request

__all__ = [
    "JobRequest",
    "KeepOptions",
    "PodOptions",
    "Prepared",
    "SubmitOptions",
    "Submitted",
    "found_schedulers",
    "job_request",
    "prepare",
    "submit",
    "submitted",
]
