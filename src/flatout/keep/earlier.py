"""What earlier starts of the same job have left in its ledger: a job that its scheduler started again goes on with it.

In: the environment, where torchrun's agents meet, and the ledger's lines. Out: `Start`, which job this is, and
`Earlier`, what its starts before have spent of the restarts, and how far they came; None where this one is the first.
Nothing is asked of the scheduler.

Slurm tells a job's number, which a requeue keeps, and how often it was started again. Elsewhere FLATOUT_JOB names the
job, as the manifest for Kubernetes does, or else torchrun's `--rdzv-id`. These do not count starts: there, a run goes
on only with one that has no end, or after which the job was to go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.inside.protocol import Variable
from flatout.keep.beats import is_alive

_MEETING = "rdzv-"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Of a job, by its scheduler."""

    job: str
    number: int | None  # 0: the first; None: nobody counts


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """`failures` are keys of judgements, each with its step."""

    num_starts: int
    num_restarts: int  # of attempts within them, and starts that ended without a word
    failures: frozenset[tuple[str, int]]
    farthest: int  # step of the whole training
    saved: int | None  # step of the last complete checkpoint
    last_unix_s: float  # of the last line


def start_of(environment: Mapping[str, str], meeting: str | None) -> Start | None:
    """`meeting`: torchrun's `--rdzv-id`, where the command has one."""
    if name := environment.get(Variable.JOB):
        return Start(job=name, number=None)
    if number := environment.get("SLURM_JOB_ID"):
        count = environment.get("SLURM_RESTART_COUNT", "0")
        return Start(job=f"slurm-{number}", number=int(count) if count.isdecimal() else 0)
    return None if meeting is None else Start(job=f"{_MEETING}{meeting}", number=None)


def earlier_of(ledger: Path, start: Start | None, *, node: str) -> Earlier | None:
    """A ledger that cannot be read, or that has nothing of this job, has no earlier start.

    `node`: as it is told there. A job that Slurm put on other nodes finds what it left in their ledgers, beside it.
    """
    beside = ledger.parent.glob("ledger-*.jsonl") if start is not None and start.number else ()
    found = (_earlier_in(path, start, node) for path in dict.fromkeys((ledger, *sorted(beside))))
    return next((earlier for earlier in found if earlier is not None), None)


def _earlier_in(ledger: Path, start: Start | None, node: str) -> Earlier | None:
    if start is None:
        return None
    try:
        lines = ledger.read_bytes().splitlines() if ledger.is_file() else []
    except OSError:
        return None
    runs = [run for run in _runs(_parsed(lines)) if run[0].get("job") == start.job]
    if not runs or not _goes_on(runs[-1], start, node):
        return None
    attempts = [sum(line["event"] == "attempt" for line in run) - _num_waits(run) for run in runs]
    silent = sum(_end_of(run) is None for run in runs)
    failures = {
        (str(line["key"]), int(line["step"]))
        for run in runs
        for line in run
        if line["event"] == "failure" and line.get("key") and isinstance(line.get("step"), int)
    }
    reached = [(line.get("reached"), line.get("saved")) for run in runs for line in run if line["event"] == "seconds"]
    return Earlier(
        num_starts=len(runs),
        num_restarts=sum(max(num - 1, 0) for num in attempts) + silent,
        failures=frozenset(failures),
        farthest=max((step for step, _ in reached if isinstance(step, int)), default=0),
        saved=next((step for _, step in reversed(reached) if isinstance(step, int)), None),
        last_unix_s=max(float(line.get("unix_s", 0.0)) for line in runs[-1]),
    )


def _goes_on(run: Sequence[Mapping[str, Any]], start: Start, node: str) -> bool:
    """Whether this start is of the same training as that run, which is the job's last one."""
    if start.number is not None:
        return start.number > int(run[0].get("start") or 0)  # else a second command in one allocation
    if run[0].get("node") == node and _lives(run[0].get("process")):  # beside this one, as two agents on one machine
        return False
    if start.job.startswith(_MEETING) and run[0].get("node") != node:  # another node's, in a ledger of both
        return False
    end = _end_of(run)
    return end is None or bool(end.get("goes_on"))


def _lives(process: object) -> bool:
    match process:
        case [int(pid), int(ticks)]:
            return is_alive(pid, ticks)
    return False


def _num_waits(run: Sequence[Mapping[str, Any]]) -> int:
    """Attempts that no restart was spent on: other nodes were not there."""
    return sum(line["event"] == "failure" and bool(line.get("awaits_peers")) for line in run)


def _end_of(run: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((line for line in reversed(run) if line["event"] == "end"), None)


def _parsed(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for raw in lines:
        try:
            line = json.loads(raw)
        except ValueError:
            continue  # cut short
        if isinstance(line, dict) and isinstance(line.get("event"), str):
            yield line


def _runs(lines: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    for line in lines:
        if line["event"] == "run":
            found.append([line])
        elif found:
            found[-1].append(line)
    return found
