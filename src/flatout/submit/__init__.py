"""One command, queued on whichever scheduler is there: Slurm, Ray, or a manifest for Kubernetes.

`find` looks for them, one file each prepares what is submitted from a `JobRequest`, and `prepared.submit` does it.
Nothing is overwritten: each submission has a folder of its own, with what was submitted, its output and its exit code.
"""

from __future__ import annotations

from flatout.submit.find import found_schedulers
from flatout.submit.job import JobRequest, Prepared, Submitted

__all__ = ["JobRequest", "Prepared", "Submitted", "found_schedulers"]
