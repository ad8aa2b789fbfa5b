"""Read from the ledger the state left by previous runs of the same job, so that a job restarted by a scheduler resumes.

In: the environment, the ID of torchrun's rendezvous, and the ledger's lines. Out: `JobStart`, which identifies the job,
and `PreviousRuns`, with the restarts that they used and the step that they reached; None if this run is the first. The
scheduler is not asked.

Slurm reports the ID of a job, which a requeue keeps, and how often the job was restarted. Elsewhere FLATOUT_JOB names
the job, as in the manifest for Kubernetes, or else torchrun's `--rdzv-id` does. These do not count starts, so a run
then continues a previous run only if that has no end line, or if its end line says that the job was to continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from flatout.inside.protocol import Variable
from flatout.launch.process_identity import is_alive

_MEETING = "rdzv-"


class JobStart(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a job, from its scheduler."""

    job: str
    number: int | None  # 0: the first start; None: starts are not counted

    @property
    def is_from_rendezvous(self) -> bool:
        """Whether the name is torchrun's `--rdzv-id`, which other jobs can have too."""
        return self.job.startswith(_MEETING)


class PreviousRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The state that previous runs left. `failures` are keys of judgements, each with its step."""

    num_starts: int
    num_restarts: int  # restarts within the runs, plus runs that have no end line
    failures: frozenset[tuple[str, int]]
    farthest: int  # the last step of the whole training that they reached
    saved: int | None  # the step of the last complete checkpoint
    last_unix_s: float  # the time of the last line


def start_of(environment: Mapping[str, str], meeting: str | None) -> JobStart | None:
    """Return the identity of the job. `meeting` is torchrun's `--rdzv-id`, if the command has it."""
    if name := environment.get(Variable.JOB):
        return JobStart(job=name, number=None)
    if number := environment.get("SLURM_JOB_ID"):
        count = environment.get("SLURM_RESTART_COUNT", "0")
        return JobStart(job=f"slurm-{number}", number=int(count) if count.isdecimal() else 0)
    return None if meeting is None else JobStart(job=f"{_MEETING}{meeting}", number=None)


def earlier_of(ledger: Path, start: JobStart | None, *, node: str, job_key: str | None = None) -> PreviousRuns | None:
    """Return the previous runs; None if the ledger cannot be read, or has no line of this job.

    `node` is the name of this node in the ledger. Runs with another `job_key` are of another job of the same name;
    None, or a run without a key, matches by the name alone. A job that Slurm moved to other nodes finds its previous
    runs in the ledgers of those nodes, in the same folder.
    """
    if start is None:
        return None
    of_other_nodes = sorted(ledger.parent.glob("ledger-*.jsonl")) if start.number else ()
    for path in dict.fromkeys((ledger, *of_other_nodes)):
        previous = _previous_runs_in(path, start, node, job_key)
        if previous is not None:
            return previous
    return None


def _previous_runs_in(ledger: Path, start: JobStart, node: str, job_key: str | None) -> PreviousRuns | None:
    try:
        raw_lines = ledger.read_bytes().splitlines() if ledger.is_file() else []
    except OSError:
        return None
    runs = [run for run in _runs(_parsed(raw_lines)) if _is_of_job(run[0], start, job_key)]
    if not runs or not _is_continued(runs[-1], start, node):
        return None
    lines = list(chain.from_iterable(runs))
    reached_steps, saved_steps = _steps_of(lines, "reached"), _steps_of(lines, "saved")
    num_without_end = sum(_end_of(run) is None for run in runs)
    return PreviousRuns(
        num_starts=len(runs),
        num_restarts=sum(_num_restarts(run) for run in runs) + num_without_end,
        failures=frozenset(_failures(lines)),
        farthest=max(reached_steps, default=0),
        saved=saved_steps[-1] if saved_steps else None,
        last_unix_s=max(float(line.get("unix_s", 0.0)) for line in runs[-1]),
    )


def _is_of_job(first: Mapping[str, Any], start: JobStart, job_key: str | None) -> bool:
    """Whether a run with this first line belongs to the job."""
    if first.get("job") != start.job:
        return False
    their_key = first.get("job_key")
    return job_key is None or their_key is None or their_key == job_key


def _steps_of(lines: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    """Return the steps under `key` in the lines that report progress."""
    steps = [line.get(key) for line in lines if line["event"] == "seconds"]
    return [step for step in steps if isinstance(step, int)]


def _failures(lines: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, int]]:
    """Yield the key and the step of each failure that has both."""
    for line in lines:
        if line["event"] == "failure" and line.get("key") and isinstance(line.get("step"), int):
            yield str(line["key"]), int(line["step"])


def _num_restarts(run: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of attempts after the first, without those that only waited for other nodes."""
    num_attempts = sum(bool(line["event"] == "attempt") for line in run)
    return max(num_attempts - _num_waits(run) - 1, 0)


def _is_continued(run: Sequence[Mapping[str, Any]], start: JobStart, node: str) -> bool:
    """Whether this start continues the training of `run`, the job's last run."""
    first = run[0]
    if start.number is not None:
        return bool(start.number > int(first.get("start") or 0))  # otherwise this is a second command in one allocation
    is_of_this_node = first.get("node") == node
    if is_of_this_node and _lives(first.get("process")):  # another agent on this machine
        return False
    if start.is_from_rendezvous and not is_of_this_node:  # a run of another node, in a ledger that both use
        return False
    end = _end_of(run)
    return end is None or bool(end.get("goes_on"))


def _lives(process: object) -> bool:
    match process:
        case [int(pid), int(ticks)]:
            return is_alive(pid, ticks)
    return False


def _num_waits(run: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of attempts that used no restart, because other nodes were missing."""
    return sum(line["event"] == "failure" and bool(line.get("awaits_peers")) for line in run)


def _end_of(run: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((line for line in reversed(run) if line["event"] == "end"), None)


def _parsed(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for raw in lines:
        try:
            line = json.loads(raw)
        except ValueError:
            continue  # truncated
        if isinstance(line, dict) and isinstance(line.get("event"), str):
            yield line


def _runs(lines: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the lines of each run. A run begins with a `run` line."""
    runs: list[list[dict[str, Any]]] = []
    for line in lines:
        if line["event"] == "run":
            runs.append([line])
        elif runs:
            runs[-1].append(line)
    return runs
