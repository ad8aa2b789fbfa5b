"""Submit a request as a Ray job: the output of `emit`, sent to the dashboard as `ray job submit` does.

POST {address}/api/jobs/, Ray's documented REST interface for jobs. The entrypoint changes to the working folder first,
which the head node must see: nothing is uploaded. The
copy in the submission's folder has its secrets masked.
"""

from __future__ import annotations

import json
import shlex
import urllib.error
import urllib.request

import msgspec

from flatout.emit import ray_job
from flatout.emit.masked import masked_note, masked_tuning
from flatout.errors import InputError
from flatout.input_files import decode_json
from flatout.records.tuning import Emitted
from flatout.service_answers import read_answer
from flatout.submit.job import JobRequest, Prepared
from flatout.submit.unsupported import unsupported_notes

_TIMEOUT_S = 30.0
_MAX_ANSWER_BYTES = 1 << 20
_OUTPUT, _EXIT_CODE = "output.log", "exit_code"


def prepare(request: JobRequest, address: str) -> Prepared:
    """Prepare the job for the dashboard at `address`."""
    emitted = ray_job.emit(request.tuning)
    text = _job_text(request, emitted)
    copy = _job_text(request, ray_job.emit(masked_tuning(request.tuning)))
    job_file = request.folder / "ray_job.json"
    url = f"{address}/api/jobs/"
    return Prepared(
        scheduler="ray",
        shown=shlex.join(["curl", "--json", f"@{job_file}", url]),
        files={job_file: copy},
        output=request.folder / _OUTPUT,
        exit_code_file=request.folder / _EXIT_CODE,
        notes=(*emitted.notes, *masked_note(request.tuning), *unsupported_notes(request, "Ray's jobs have")),
        submit=lambda: _post(url, text),
        next_command=lambda job: shlex.join(["ray", "job", "status", "--address", address, job or request.name]),
    )


def _job_text(request: JobRequest, emitted: Emitted) -> str:
    """Return the job as Ray takes it: the emitted one, started in the working folder, with its output in a file."""
    output, code_file = request.folder / _OUTPUT, request.folder / _EXIT_CODE
    job = json.loads(emitted.text)
    # Ray starts the entrypoint with sh.
    job["entrypoint"] = (
        f"cd {shlex.quote(str(request.working_folder))} && ( {job['entrypoint']} ) > {shlex.quote(str(output))} 2>&1; "
        f"code=$?; echo $code > {shlex.quote(str(code_file))}; exit $code"
    )
    if request.gpus_per_node:
        job["entrypoint_num_gpus"] = request.gpus_per_node
    job["submission_id"] = request.name
    return json.dumps(job, indent=2) + "\n"


def _post(url: str, text: str) -> str:
    """Send the job and return its submission id."""
    headers = {"Content-Type": "application/json"}
    post = urllib.request.Request(url, data=text.encode(), headers=headers, method="POST")
    try:
        answer = read_answer(post, max_bytes=_MAX_ANSWER_BYTES, timeout_s=_TIMEOUT_S)
        return str(decode_json(answer)["submission_id"])
    except urllib.error.HTTPError as error:
        lines = error.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else str(error.reason)
        raise InputError(f"Ray rejected the job: {error.code} {reason}") from None
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"Ray does not answer at {url}: {error}",
            hint="set RAY_API_SERVER_ADDRESS to the address of its dashboard",
        ) from None
