"""A Ray job as `ray job submit` takes it: the entrypoint, and the runtime environment as JSON.

`ray job submit --entrypoint-num-gpus N --runtime-env-json "$(jq -c .runtime_env ray_job.json)" -- ENTRYPOINT`, or POST
the file to `/api/jobs/`, whose fields are these. Ray runs the entrypoint on one node, with the GPUs that it asks for.
"""

from __future__ import annotations

import json
import shlex

from flatout.emit.command import CONFIG, named_head, tuned_command, unplaced, without_srun
from flatout.emit.heading import heading
from flatout.emit.rendezvous import num_nodes
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    tuning, left_out = without_srun(tuning)
    nodes = num_nodes(tuning)
    gpus = tuning.machine.get("ranks_per_host", "")
    has_gpus = tuning.machine.get("device", "").upper().startswith(("NVIDIA", "AMD"))
    job = {
        "entrypoint": shlex.join(tuned_command(tuning)),
        **({"entrypoint_num_gpus": int(gpus)} if has_gpus and gpus.isdecimal() else {}),
        "runtime_env": {"env_vars": {} if tuning.needs_run else dict(sorted(tuning.changes.environment.items()))},
        "metadata": {"flatout": "; ".join(heading(tuning))},
    }
    notes = [*left_out, *unplaced(tuning), *named_head(tuned_command(tuning))]
    if nodes > 1:
        notes.append(f"Ray starts the entrypoint on one node: for {nodes}, start its ranks with Ray Train")
    if tuning.needs_run:
        has_config = tuning.needs_patches or tuning.changes.changes
        with_config = f"the job's working folder must have {CONFIG}, and its Python flatout"
        notes.append(with_config if has_config else "the job's Python must have flatout")
    return Emitted(path="ray_job.json", text=json.dumps(job, indent=2) + "\n", notes=tuple(notes))
