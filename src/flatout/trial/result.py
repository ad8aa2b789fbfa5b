"""Build a TrialResult from a trial's recording, what its processes wrote, and how its command ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.input_files import decode_json, open_file, read_bytes
from flatout.inside.protocol import FailureKind, File, StopReason
from flatout.launch import ExitStatus
from flatout.records.change import ChangeSet
from flatout.records.machine import Xid
from flatout.records.recording import HostUse, RankRecording, Recording
from flatout.records.stop_rule import StoppedBy
from flatout.records.trial import (
    Covariates,
    FailureCause,
    GradientNorms,
    OutputDigest,
    StartState,
    TrialOutcome,
    TrialResult,
)
from flatout.trial.data import check_data
from flatout.trial.gradients import read_gradients, read_start
from flatout.trial.model_outputs import read_model_outputs
from flatout.trial.patches import read_padding, unapplied
from flatout.trial.start_costs import counted_from_s, start_costs
from flatout.trial.step_kinds import common_steps, measured_rows, step_numbers, step_spells

_Value = TypeVar("_Value")


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended a rank, as the rank recorded it."""

    rank: int | None = None
    kind: str
    exception: str
    message: str = ""
    unix_s: float = 0.0


# Found in the output of a process that could not write a failure file: a launcher, or a rank that was killed.
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|HIP out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: can't allocate memory|^MemoryError|[Dd]etected \d+ oom[-_]kill event",
    re.MULTILINE,
)
_ERROR_LINE = re.compile(r"^(?:\[rank\d+\]:\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
_TAIL_BYTES = 200_000
MIN_STEPS = 3


class TrialRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the job in a trial: what was asked for, and how it ended."""

    index: int
    changes: ChangeSet
    recording: Recording | None
    folder: Path  # of the recording, which may be unreadable
    output: Path  # the file that holds the command's output
    ended: ExitStatus
    began_unix_s: float
    took_s: float
    limit_s: float
    session: int = 0
    loader_workers: int | None = None
    has_other_samples: bool = False
    has_other_rounding: bool = False
    sets_own_seed: bool | None = None
    steps_per_epoch: int | None = None
    read_earlier: str | None = None  # the error if it read what an earlier trial had written


class _Ending(NamedTuple):
    outcome: TrialOutcome
    cause: FailureCause | None = None
    problem: str = ""


class _Recorded(NamedTuple):
    """What a trial's recording contains; nothing, if there is none that can be read."""

    ranks: Sequence[RankRecording] = ()
    hosts: Sequence[HostUse] = ()
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    peak_memory_bytes: int | None = None
    gradients: tuple[GradientNorms, ...] = ()
    start: tuple[StartState, ...] = ()
    model_outputs: tuple[OutputDigest, ...] = ()


def _recorded(recording: Recording | None) -> _Recorded:
    if recording is None:
        return _Recorded()
    measured = recording.measured
    num_ranks = len(recording.ranks)
    traces = Path(recording.traces_path)
    return _Recorded(
        ranks=recording.ranks,
        hosts=recording.hosts,
        samples_per_step=measured.samples_per_step,
        tokens_per_step=measured.tokens_per_step,
        peak_memory_bytes=measured.peak_memory_bytes,
        gradients=read_gradients(traces, num_ranks),
        start=read_start(traces, num_ranks),
        model_outputs=read_model_outputs(traces),
    )


def trial_result(run: TrialRun) -> TrialResult:
    """Return the trial's measurements."""
    recorded = _recorded(run.recording)
    ranks = recorded.ranks
    step_s = mean_steps(ranks)
    numbers = step_numbers(ranks)
    mean_s = float(np.mean(step_s)) if len(step_s) else math.nan
    began_unix_s = run.ended.start_unix_s or run.began_unix_s
    data = check_data(run.folder, len(ranks))
    ending = _ending(run, len(step_s))
    return TrialResult(
        index=run.index,
        arm=run.changes.name,
        outcome=ending.outcome,
        cause=ending.cause,
        problem=ending.problem,
        step_s=step_s,
        epoch_ends=epoch_ends(ranks),
        first_step=numbers.first,
        unmeasured_steps=numbers.unmeasured,
        spells=step_spells(ranks),
        loader_wait_s=loader_wait_s(ranks),
        steps_per_epoch=run.steps_per_epoch,
        samples_per_step=recorded.samples_per_step,
        tokens_per_step=recorded.tokens_per_step,
        peak_memory_bytes=recorded.peak_memory_bytes,
        energy_j_per_step=_energy(recorded.hosts, mean_s),
        wrong_data=None if data.is_passed else data.reason,
        losses=mean_losses(ranks),
        gradients=recorded.gradients,
        start=recorded.start,
        model_outputs=recorded.model_outputs,
        has_overlapping_calls=any(rank.is_pooled for rank in ranks),
        padding=read_padding(run.folder),
        loader_workers=run.loader_workers,
        has_other_samples=run.has_other_samples,
        has_other_rounding=run.has_other_rounding,
        sets_own_seed=run.sets_own_seed,
        start_s=_start_s(ranks, began_unix_s),
        start_costs=start_costs(ranks, began_unix_s, run.ended.end_unix_s),
        covariates=covariates(recorded.hosts, run.ended),
        took_s=run.took_s,
        stopped_by=_stopped_by(ranks) if ending.outcome == "completed" else None,
        session=run.session,
    )


_STOPPED_BY: dict[str, StoppedBy] = {
    StopReason.STEPS: "max",
    StopReason.TIME: "time",
    StopReason.ENOUGH: "enough",
    StopReason.ABANDONED: "abandoned",
    StopReason.MAX: "max",
}


def _stopped_by(ranks: Sequence[RankRecording]) -> StoppedBy | None:
    """Return why the trial stopped; None if the recorder gives a reason of a newer version."""
    reason = next((rank.stopped_by for rank in ranks if rank.stopped_by is not None), None)
    return "job ended" if reason is None else _STOPPED_BY.get(reason)


def _ending(run: TrialRun, num_steps: int) -> _Ending:
    """Return how the trial ended: the first reason for which its steps do not count, or `completed`."""
    if run.read_earlier is not None:
        return _Ending("failed", "read_earlier", run.read_earlier)
    if run.ended.cause is not None and run.ended.cause != "void":
        return _Ending(run.ended.cause, None, run.ended.reason)
    ending = _how_it_ended(run)
    if ending.outcome != "completed":
        return ending
    ranks = run.recording.ranks if run.recording is not None else ()
    if num_steps < MIN_STEPS:
        problem = _lack_of_steps(num_steps if ranks else None, run.recording)
        return _Ending("failed", "too_few_steps" if ranks else "no_step", problem)
    missing = unapplied(run.folder, run.changes)
    return _Ending("failed", "not_applied", missing[0]) if missing else ending


def _lack_of_steps(num_steps: int | None, recording: Recording | None) -> str:
    """Say how many measured steps a trial made (None: not even one step), and the first problem in its recording."""
    if num_steps is None:
        problem = "no training step was seen in it"
    else:
        problem = f"it made {num_steps} steps after the warm-up, but at least {MIN_STEPS} are needed"
    if recording is not None and recording.problems:
        problem += f" ({recording.problems[0].problem})"
    return problem


def mean_steps(ranks: Sequence[RankRecording]) -> tuple[float, ...]:
    """Return the seconds of each measured step that all ranks have, the mean over the ranks."""
    columns = [_by_number(rank, rank.steps.duration_s) for rank in ranks]
    return tuple(float(np.mean([column[number] for column in columns])) for number in common_steps(ranks))


def epoch_ends(ranks: Sequence[RankRecording]) -> tuple[int, ...] | None:
    """Return the indices in `mean_steps` of the steps in which a rank's loader reached its end.

    Return None if not recorded.
    """
    columns = []
    for rank in ranks:
        ends = rank.steps.num_loader_ends
        if ends is None:
            return None
        columns.append(_by_number(rank, ends))
    numbers = common_steps(ranks)
    return tuple(place for place, number in enumerate(numbers) if any(column[number] > 0 for column in columns))


def loader_wait_s(ranks: Sequence[RankRecording]) -> float | None:
    """Return the mean wait of a measured step for its batch, on the rank that waits longest in it; None if unknown.

    The start of a loader, with the wait for its first batch, is not part of it: few steps have one.
    """
    columns = []
    for rank in ranks:
        start_s = rank.steps.loader_start_s
        if start_s is None:
            return None
        columns.append(_by_number(rank, np.maximum(rank.steps.loader_s - start_s, 0.0)))
    numbers = common_steps(ranks)
    if not numbers:
        return None
    return float(np.mean([max(column[number] for column in columns) for number in numbers]))


def _by_number(rank: RankRecording, column: NDArray[np.float64]) -> dict[int, float]:
    """Return the values of the measured steps, by the step's number; empty if the rank has no measured steps."""
    rows = measured_rows(rank)
    return dict(zip(rank.steps.number[rows].tolist(), column[rows].tolist(), strict=True))


def mean_losses(ranks: Sequence[RankRecording]) -> tuple[float, ...]:
    """Return the loss of each step from the first, the mean over the ranks; NaN if a rank has none."""
    losses = [rank.steps.loss for rank in ranks]
    length = min((len(loss) for loss in losses), default=0)
    if not length:
        return ()
    return tuple(np.mean([loss[:length] for loss in losses], axis=0).tolist())


def error_line(output: Path) -> str:
    """Return the last line of the output that names an error, or else the last line."""
    text = _tail(output)
    errors = _ERROR_LINE.findall(text)
    of_the_job = [line for line in errors if not line.startswith(("torch.distributed.elastic", "ChildFailedError"))]
    lines = [line for line in text.splitlines() if line.strip()]
    return (of_the_job or errors or lines or ["it printed nothing"])[-1].strip()


def _how_it_ended(run: TrialRun) -> _Ending:
    """Return how the command ended, by its exit code, its failure files and its output."""
    text = _tail(run.output)
    recorded = _failures(Path(run.recording.path)) if run.recording is not None else []
    failures = sorted(recorded, key=lambda failure: failure.unix_s)
    memory = [failure for failure in failures if failure.kind == FailureKind.OUT_OF_MEMORY]
    ended = run.ended
    if ended.is_timed_out and not memory:  # a rank that ran out of memory leaves the others waiting for it
        return _Ending("timed_out", problem=f"it ran for more than {run.limit_s:.0f} s, and was ended")
    if ended.code == 0 and not ended.is_timed_out:
        return _Ending("completed")
    if memory or (not failures and _OUT_OF_MEMORY.search(text)):
        return _Ending("out_of_memory", problem=_words(memory[0]) if memory else error_line(run.output))
    how = f"exit code {ended.code}" if ended.code is not None else "ended by a signal"
    return _Ending("failed", "error", f"{how}: {_words(failures[0]) if failures else error_line(run.output)}")


def _failures(recording: Path) -> list[_Failure]:
    """Read the failures of all ranks. The first in time is the cause: the others fail because of it."""
    failures = []
    for file in recording.glob(File.FAILURE.glob):
        try:
            failures.append(decode_json(read_bytes(file), type=_Failure))
        except (OSError, msgspec.DecodeError):
            continue  # truncated by the end of its process
    return failures


def _words(failure: _Failure) -> str:
    where = f"rank {failure.rank}: " if failure.rank is not None else ""
    lines = failure.message.splitlines()
    return f"{where}{failure.exception}" + (f": {lines[0][:200]}" if lines else "")


def _tail(output: Path) -> str:
    try:
        with open_file(output) as file:
            file.seek(max(output.stat().st_size - _TAIL_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _energy(hosts: Sequence[HostUse], step_s: float) -> float | None:
    powers = [gpu.power_w for host in hosts for gpu in host.gpus]
    if not powers or math.isnan(step_s) or any(power is None for power in powers):
        return None
    return step_s * sum(power for power in powers if power is not None)


def _start_s(ranks: Sequence[RankRecording], start_unix_s: float) -> float | None:
    starts = [begins_s for rank in ranks if (begins_s := counted_from_s(rank)) is not None]
    return max(starts) - start_unix_s if starts else None


def covariates(hosts: Sequence[HostUse], ended: ExitStatus | None = None) -> Covariates:
    """Return the conditions during a run; `ended` names the scheduler's job and nodes."""
    gpus = [gpu for host in hosts for gpu in host.gpus]
    clocks = _known(gpu.sm_clock_hz for gpu in gpus)
    has_nodes = ended is not None and ended.nodes is not None
    return Covariates(
        sm_clock_hz=float(np.mean(clocks)) if clocks else None,
        throttle_share=_largest_shares(gpu.throttle_share for gpu in gpus),
        xids=_all_known(_known(host.xids for host in hosts), len(hosts)),
        temperature_c=max(_known(gpu.temperature_c for gpu in gpus), default=None),
        cores_busy_by_others=max(_known(host.cores_busy_by_others for host in hosts), default=None),
        cores_allowed=min((host.cores_allowed for host in hosts), default=None),
        quota_throttled_s_per_s=max(_known(host.throttled_s_per_s for host in hosts), default=None),
        nodes=ended.nodes if ended is not None else None,
        job=ended.job if ended is not None and has_nodes else None,
    )


def _known(values: Iterable[_Value | None]) -> list[_Value]:
    return [value for value in values if value is not None]


def _largest_shares(of_gpus: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest share of each reason that any GPU was throttled for."""
    largest: dict[str, float] = {}
    for shares in of_gpus:
        for reason, share in shares.items():
            largest[reason] = max(share, largest.get(reason, 0.0))
    return largest


def _all_known(xids: Sequence[tuple[Xid, ...]], num_hosts: int) -> tuple[Xid, ...] | None:
    """Return the errors of all hosts; None, not an empty tuple, if none was logged and a host was not watched."""
    logged = tuple(xid for of_host in xids for xid in of_host)
    return logged if logged or (xids and len(xids) == num_hosts) else None
