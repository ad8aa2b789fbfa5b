"""Gavel's `.trace` files: a job a line, tabs between 7 or 10 columns, no header, steps in place of seconds.

In: the trace, and beside it the throughputs that Gavel measured (`throughputs.json`: GPU type -> "('JOB TYPE', GPUS)"
-> "null" -> steps a second). Out: jobs whose duration is that on the first type, with their speed on the others. Jobs
of a type or size that wasn't measured are left out.

    7:  type, command, steps argument, needs data, steps, arrival, GPUs
    10: type, command, folder, steps argument, needs data, steps, GPUs, priority weight, SLO, arrival
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flatout.errors import InputError
from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out, number, whole

_PLACES = {7: (4, 5, 6), 10: (5, 9, 6)}  # steps, arrival, GPUs


def load(path: Path, throughputs: Path | None = None) -> JobHistory:
    measured = _throughputs(throughputs or path.parent / "throughputs.json")
    types = list(measured)
    jobs: list[ClusterJob] = []
    skipped: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    for line, text in enumerate(lines, 1):
        columns = text.split("\t")
        if len(columns) not in _PLACES:
            raise InputError(
                f"{path}, line {line}: a line of Gavel's traces must have 7 or 10 columns, but has {len(columns)}"
            )
        steps, arrival, gpus = (columns[place] for place in _PLACES[len(columns)])
        count, num_steps = (
            whole(path, line, "the number of GPUs", gpus),
            number(path, line, "the number of steps", steps),
        )
        rates = [_rate(measured[name], columns[0], count) for name in types]
        if count <= 0 or num_steps <= 0:
            left_out(skipped, "no GPUs" if count <= 0 else "no steps")
        elif not rates[0]:
            left_out(skipped, f"no throughput on {types[0]} for its type and GPUs")
        else:
            known = [(name, rate / rates[0]) for name, rate in zip(types, rates, strict=True) if rate]
            jobs.append(
                ClusterJob(
                    submit_s=number(path, line, "the arrival", arrival),
                    num_gpus=count,
                    duration_s=num_steps / rates[0],
                    name=columns[0],
                    gpu_types=tuple(name for name, _ in known),
                    type_speeds=tuple(known),
                )
            )
    return JobHistory(jobs=by_submission(jobs), source="Gavel", left_out=skipped)


def _throughputs(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}",
            hint="a trace of Gavel counts steps: put its simulation_throughputs.json beside it as throughputs.json",
        ) from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict) or not content or not all(isinstance(each, dict) for each in content.values()):
        raise InputError(f"{path}: must hold, by GPU type, the steps a second of each job type")
    return content


def _rate(measured: dict[str, Any], job_type: str, gpus: int) -> float:
    found = measured.get(f"('{job_type}', {gpus})", {})
    value = found.get("null", 0.0) if isinstance(found, dict) else 0.0
    return float(value) if isinstance(value, int | float) else 0.0
