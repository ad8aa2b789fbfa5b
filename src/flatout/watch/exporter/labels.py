"""Name a job for its metrics. In: the environment and the command's program. Out: `JobLabels`.

The ID is from Slurm, Ray or Kubernetes, in this order: a Slurm job can start Ray, and both can run in a pod.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from flatout.input_files import read_text
from flatout.inside.protocol import Variable
from flatout.records.watch import JobLabels

_ID_VARIABLES = ("SLURM_JOB_ID", "RAY_JOB_ID")
_CGROUP = Path("/proc/self/cgroup")
# kubepods.slice/kubepods-pod8f7c..._....slice, or kubepods/pod8f7c-...
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


def job_labels(script: str, environment: Mapping[str, str] = os.environ, cgroup: Path = _CGROUP) -> JobLabels:
    """Return the labels of a job that runs `script`. A name that the user gave in FLATOUT_JOB precedes the script's."""
    return JobLabels(
        job=environment.get(Variable.JOB) or environment.get("SLURM_JOB_NAME") or script,
        job_id=_job_id(environment, cgroup),
        host=os.uname().nodename,
    )


def _job_id(environment: Mapping[str, str], cgroup: Path) -> str:
    for name in _ID_VARIABLES:
        if environment.get(name):
            return environment[name]
    try:
        pod = _POD.search(read_text(cgroup))
    except (OSError, ValueError):
        return ""
    return pod[1].replace("_", "-") if pod is not None else ""
