"""Gavel's `.trace` files: one job per line, 7 or 10 tab-separated columns, no header, steps instead of seconds.

In: the trace, and next to it the throughputs that Gavel measured (`throughputs.json`: GPU type -> "('JOB TYPE', GPUS)"
-> "null" -> steps per second). Out: jobs with their duration on the first type, and their speed on the other types.
Jobs of a type or size that wasn't measured are skipped.

    7:  type, command, steps argument, needs data, steps, arrival, GPUs
    10: type, command, folder, steps argument, needs data, steps, GPUs, priority weight, SLO, arrival
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_written_json, read_bytes, read_text
from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import Skipped, number, whole

_COLUMNS = {7: (4, 5, 6), 10: (5, 9, 6)}  # number of columns -> columns of steps, arrival, GPUs
_FASTEST_STEPS_PER_S = 1e9


def load(path: Path, throughputs: Path | None = None) -> JobHistory:
    steps_per_s_on = _read_throughputs(throughputs or path.parent / "throughputs.json")
    first_type = next(iter(steps_per_s_on))
    jobs: list[ClusterJob] = []
    skipped = Skipped()
    for line, text in enumerate(_read_lines(path), 1):
        columns = text.split("\t")
        if len(columns) not in _COLUMNS:
            raise InputError(
                f"{path}, line {line}: a line of Gavel's traces must have 7 or 10 columns, but has {len(columns)}"
            )
        job_type = columns[0]
        steps_text, arrival_text, gpus_text = (columns[column] for column in _COLUMNS[len(columns)])
        num_gpus = whole(path, line, "the number of GPUs", gpus_text)
        num_steps = number(path, line, "the number of steps", steps_text)
        if num_gpus <= 0:
            skipped.add("no GPUs")
            continue
        if num_steps <= 0:
            skipped.add("no steps")
            continue
        rates = {gpu_type: _steps_per_s(measured, job_type, num_gpus) for gpu_type, measured in steps_per_s_on.items()}
        first_rate = rates[first_type]
        if not first_rate:
            skipped.add(f"no throughput on {first_type} for its job type and number of GPUs")
            continue
        speeds = tuple((gpu_type, rate / first_rate) for gpu_type, rate in rates.items() if rate)
        job = ClusterJob(
            submit_s=number(path, line, "the arrival", arrival_text),
            num_gpus=num_gpus,
            duration_s=num_steps / first_rate,
            name=job_type,
            gpu_types=tuple(gpu_type for gpu_type, _ in speeds),
            type_speeds=speeds,
        )
        jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="Gavel", skipped=skipped.counts)


def _read_lines(path: Path) -> list[str]:
    try:
        return read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _read_throughputs(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = decode_written_json(read_bytes(path))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}",
            hint="Gavel's traces count steps: put its simulation_throughputs.json next to them as throughputs.json",
        ) from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    is_object = isinstance(content, dict) and all(isinstance(measured, dict) for measured in content.values())
    if not is_object or not content:
        raise InputError(f"{path}: must hold, by GPU type, the steps per second of each job type")
    return dict(content)


def _steps_per_s(measured: dict[str, Any], job_type: str, num_gpus: int) -> float:
    """Return the steps per second of a job type alone on its GPUs; 0 if it was not measured, or the number is none."""
    rates = measured.get(f"('{job_type}', {num_gpus})")
    if not isinstance(rates, dict):
        return 0.0
    rate = rates.get("null")
    if not isinstance(rate, int | float) or not 0 < rate < _FASTEST_STEPS_PER_S:
        return 0.0
    return float(rate)
