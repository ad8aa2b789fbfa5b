"""A Ray job as `ray job submit` takes it: the entrypoint, and the runtime environment as JSON.

`ray job submit --runtime-env-json "$(jq -c .runtime_env ray_job.json)" -- ENTRYPOINT`, or POST the file to
`/api/jobs/`, whose fields are these.
"""

from __future__ import annotations

import json
import shlex

from flatout.emit.command import CONFIG, tuned_command, unplaced
from flatout.emit.heading import heading
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    job = {
        "entrypoint": shlex.join(tuned_command(tuning)),
        "runtime_env": {"env_vars": {} if tuning.needs_patches else dict(sorted(tuning.changes.environment.items()))},
        "metadata": {"flatout": "; ".join(heading(tuning))},
    }
    notes = [*unplaced(tuning)]
    if tuning.needs_patches:
        notes.append(f"the job's working folder must have {CONFIG}, and its Python flatout")
    return Emitted(path="ray_job.json", text=json.dumps(job, indent=2) + "\n", notes=tuple(notes))
