"""Write a Ray job for `ray job submit`: the entrypoint, and the runtime environment as JSON.

`ray job submit --entrypoint-num-gpus N --runtime-env-json "$(jq -c .runtime_env ray_job.json)" -- ENTRYPOINT`, or POST
the file to `/api/jobs/`, which has these fields. Ray runs the entrypoint on one node, with the GPUs that it requests.
"""

from __future__ import annotations

import json
import shlex

from flatout.emit.command import CONFIG, config_note, named_head, tuned_command, unplaced, without_srun
from flatout.emit.heading import heading
from flatout.emit.rendezvous import num_nodes
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    tuning, notes = without_srun(tuning)
    job: dict[str, object] = {"entrypoint": shlex.join(tuned_command(tuning))}
    gpus = tuning.machine.get("ranks_per_host", "")
    has_gpus = tuning.machine.get("device", "").upper().startswith(("NVIDIA", "AMD"))
    if has_gpus and gpus.isdecimal():
        job["entrypoint_num_gpus"] = int(gpus)
    variables = {} if tuning.needs_run else dict(sorted(tuning.changes.environment.items()))
    job["runtime_env"] = {"env_vars": variables}
    job["metadata"] = {"flatout": "; ".join(heading(tuning, has_command=True))}
    notes += [*unplaced(tuning), *named_head(tuned_command(tuning))]
    nodes = num_nodes(tuning)
    if nodes > 1:
        notes.append(f"Ray starts the entrypoint on one node: for {nodes}, start its ranks with Ray Train")
    notes += config_note(
        tuning,
        f"the job's working folder must have {CONFIG}, and its Python flatout",
        with_flatout="the job's Python must have flatout",
    )
    return Emitted(path="ray_job.json", text=json.dumps(job, indent=2) + "\n", notes=tuple(notes))
