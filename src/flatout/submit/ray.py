"""A request as a Ray job: what `emit` writes, sent to the dashboard as `ray job submit` does.

POST {address}/api/jobs/, Ray's documented REST interface of jobs. The entrypoint goes to the working folder first,
which the head node must see: nothing is uploaded.
"""

from __future__ import annotations

import json
import shlex
import urllib.error
import urllib.request

from flatout.emit import ray_job
from flatout.errors import InputError
from flatout.submit.job import JobRequest, Prepared

_TIMEOUT_S = 30.0


def prepare(request: JobRequest, address: str) -> Prepared:
    made = ray_job.emit(request.tuning)
    job = json.loads(made.text)
    code_file, output = request.folder / "exit_code", request.folder / "output.log"
    inner = job["entrypoint"]
    # Ray starts the entrypoint with sh.
    job["entrypoint"] = (
        f"cd {shlex.quote(str(request.working_folder))} && ( {inner} ) > {shlex.quote(str(output))} 2>&1; "
        f"code=$?; echo $code > {shlex.quote(str(code_file))}; exit $code"
    )
    if request.gpus_per_node:
        job["entrypoint_num_gpus"] = request.gpus_per_node
    job["submission_id"] = request.name
    text = json.dumps(job, indent=2) + "\n"
    file = request.folder / "ray_job.json"
    url = f"{address}/api/jobs/"
    return Prepared(
        scheduler="ray",
        shown=shlex.join(
            ["curl", "--json", f"@{file}", url],
        ),
        files={file: text},
        output=output,
        exit_code_file=code_file,
        notes=(*made.notes, *_notes(request)),
        submit=lambda: _post(url, text),
        next_command=lambda job: shlex.join(["ray", "job", "status", "--address", address, job or request.name]),
    )


def _post(url: str, text: str) -> str:
    asked = urllib.request.Request(url, data=text.encode(), headers={"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:
            found = json.loads(answer.read())
        return str(found["submission_id"])
    except urllib.error.HTTPError as error:
        said = error.read().decode("utf-8", "replace").strip().splitlines()
        raise InputError(f"Ray takes no such job: {error.code} {said[-1] if said else error.reason}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"Ray does not answer at {url}: {reason}", hint="set RAY_API_SERVER_ADDRESS to its dashboard"
        ) from None


def _notes(request: JobRequest) -> list[str]:
    without = {
        "--time": request.time_s,
        "--deadline": request.deadline_s,
        "--partition": request.partitions or None,
        "--account": request.account,
        "--qos": request.qos,
        "--resume": request.can_resume or None,
        "--sbatch-options": request.options or None,
    }
    return [f"Ray's jobs have no setting for {name}" for name, value in without.items() if value is not None]
