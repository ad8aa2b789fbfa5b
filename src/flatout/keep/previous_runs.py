"""Read from the ledger the state left by previous runs of the same job, so that a job restarted by a scheduler resumes.

In: the environment, the ID of torchrun's rendezvous, and the ledger's lines. Out: `JobStart`, which identifies the job,
and `PreviousRuns`, with the restarts that they used and the step that they reached; None if this run is the first. The
scheduler is not asked.

Slurm reports the ID of a job, which a requeue keeps, and how often the job was restarted. Elsewhere FLATOUT_JOB names
the job, as in the manifest for Kubernetes, or else torchrun's `--rdzv-id` does. These do not count starts, so a run
then continues a previous run only if that has no end line, or if its end line says that the job was to continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from flatout.input_files import read_lines
from flatout.inside.protocol import Variable
from flatout.keep.ledger_lines import (
    AttemptLine,
    EndLine,
    FailureLine,
    LedgerLine,
    RunLine,
    SecondsLine,
    decode_line,
)
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
        raw_lines = list(read_lines(ledger)) if ledger.exists() else []
    except OSError:
        return None
    runs = [run for run in _runs(_parsed(raw_lines)) if _is_of_job(run.first, start, job_key)]
    if not runs or not _is_continued(runs[-1], start, node):
        return None
    lines = list(chain.from_iterable(run.lines for run in runs))
    reached_steps, saved_steps = _steps_of(lines)
    num_without_end = sum(run.end is None for run in runs)
    return PreviousRuns(
        num_starts=len(runs),
        num_restarts=sum(_num_restarts(run) for run in runs) + num_without_end,
        failures=frozenset(_failures(lines)),
        farthest=max(reached_steps, default=0),
        saved=saved_steps[-1] if saved_steps else None,
        last_unix_s=max(line.unix_s for line in (runs[-1].first, *runs[-1].lines)),
    )


def _steps_of(lines: Sequence[object]) -> tuple[list[int], list[int]]:
    """Return the steps that the ledger says were reached, and those that were saved."""
    progress = [line for line in lines if isinstance(line, SecondsLine)]
    reached = [line.reached for line in progress if line.reached is not None]
    saved = [line.saved for line in progress if line.saved is not None]
    return reached, saved


def _is_of_job(first: RunLine, start: JobStart, job_key: str | None) -> bool:
    """Whether a run with this first line belongs to the job."""
    if first.job != start.job:
        return False
    return job_key is None or first.job_key is None or first.job_key == job_key


class _Run(msgspec.Struct, frozen=True):
    """The lines of one run: the `run` line, and those after it."""

    first: RunLine
    lines: list[LedgerLine]

    @property
    def end(self) -> EndLine | None:
        return next((line for line in reversed(self.lines) if isinstance(line, EndLine)), None)


def _failures(lines: Iterable[LedgerLine]) -> Iterable[tuple[str, int]]:
    """Yield the key and the step of each failure that has both."""
    for line in lines:
        if isinstance(line, FailureLine) and line.key and line.step is not None:
            yield line.key, line.step


def _num_restarts(run: _Run) -> int:
    """Return the number of attempts after the first, without those that only waited for other nodes."""
    num_attempts = sum(isinstance(line, AttemptLine) for line in run.lines)
    return max(num_attempts - _num_waits(run) - 1, 0)


def _is_continued(run: _Run, start: JobStart, node: str) -> bool:
    """Whether this start continues the training of `run`, the job's last run."""
    first = run.first
    if start.number is not None:
        return start.number > (first.start or 0)  # otherwise this is a second command in one allocation
    is_of_this_node = first.node == node
    if is_of_this_node and _lives(first.process):  # another agent on this machine
        return False
    if start.is_from_rendezvous and not is_of_this_node:  # a run of another node, in a ledger that both use
        return False
    return run.end is None or bool(run.end.goes_on)


def _lives(process: object) -> bool:
    match process:
        case [int(pid), int(ticks)]:
            return is_alive(pid, ticks)
    return False


def _num_waits(run: _Run) -> int:
    """Return the number of attempts that used no restart, because other nodes were missing."""
    return sum(isinstance(line, FailureLine) and line.awaits_peers for line in run.lines)


def _parsed(lines: Iterable[bytes]) -> Iterable[LedgerLine]:
    """Yield the records of the valid lines; a line can be truncated."""
    for raw in lines:
        with suppress(msgspec.DecodeError):
            yield decode_line(raw)


def _runs(lines: Iterable[LedgerLine]) -> list[_Run]:
    """Return the runs. A run begins with a `run` line."""
    runs: list[_Run] = []
    for line in lines:
        if isinstance(line, RunLine):
            runs.append(_Run(line, []))
        elif runs:
            runs[-1].lines.append(line)
    return runs
