"""Read `rank{R}.steps.jsonl` into a `RankRecording`: a rank's steps, and the events of its recorder.

In: a file that `inside/` wrote, perhaps truncated by a kill or a full disk; unreadable lines are counted and skipped.
Out: the record, or None if not even the header can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.input_files import BadLine, read_lines
from flatout.inside.protocol import EXIT, STEP_FILE_DELAY_S, File
from flatout.profile.step_records import (
    End,
    Event,
    Flops,
    Header,
    LossesLine,
    PlanLine,
    RecorderTime,
    Restart,
    StallWindowLine,
    Started,
    StepLine,
    Stop,
    WindowLine,
    as_number,
    decode_line,
)
from flatout.records.events import Quality
from flatout.records.recording import RankRecording, StallWindowSteps, Steps
from flatout.records.start_costs import Span, StartTimes
from flatout.step_log.bursts import spread_bursts

_MIN_FOR_SPREAD = 5
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_NO_TRACE = "this rank's trace is missing or incomplete"


class _Lines:
    """The content of a file: the rows after the last restart, and the last event of each kind."""

    def __init__(self, path: Path) -> None:
        self.header: Header | None = None
        self.rows: list[StepLine] = []
        self.plan: PlanLine | None = None
        self.flops = Flops()
        self.window = WindowLine()
        self.stall_window: StallWindowLine | None = None
        self.started: Started | None = None
        self.stop: Stop | None = None
        self.end: End | None = None
        self.losses: dict[int, float] = {}
        self.skipped: dict[int, bool] = {}
        self.recorder_ns = 0
        self.bad: list[BadLine] = []
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            try:
                self._take(decode_line(line, self.header))
            except msgspec.DecodeError as error:
                self.bad.append(BadLine(file=path.name, number=number, problem=str(error)))

    def _take(self, record: Header | StepLine | Event | None) -> None:
        match record:
            case StepLine():
                self.rows.append(record)
            case Header():
                self.header = record
            case PlanLine():
                self.plan = record
            case Flops():
                self.flops = record
            case WindowLine():
                self.window = record
            case StallWindowLine():
                self.stall_window = record
            case Started():
                self.started = record
            case Stop():
                self.stop = record
            case End():
                self.end = record
            case RecorderTime():
                self.recorder_ns += record.cost_ns
            case LossesLine():
                self._take_losses(record)
            case Restart():
                self.rows.clear()
                self.plan, self.flops, self.window, self.stall_window = None, Flops(), WindowLine(), None

    def _take_losses(self, losses: LossesLine) -> None:
        for step, loss, is_skipped in losses.values:
            self.losses[step] = as_number(loss, "values")
            if is_skipped is not None:
                self.skipped[step] = bool(is_skipped)


def read_rank(path: Path, *, loader_workers: int | None = None) -> RankRecording | None:
    """Read a rank's file; None if it is empty. Raise InputError, with the line and the field, if no header is valid.

    With the number of workers of its loader, the untraced step does not depend on where in a burst of batches it is.
    """
    lines = _Lines(path)
    header = lines.header
    if header is None:
        if lines.bad:
            raise InputError(str(lines.bad[0]), hint="record the job again")
        return None
    steps = _steps(lines.rows, header)
    _add_late(steps, lines)
    untraced = _untraced(steps, lines.plan)
    durations = steps.duration_s[untraced]
    spread_s = spread_bursts(steps.loader_s[untraced], loader_workers or 0)
    if spread_s is not None:
        durations = durations + spread_s
    end = lines.end
    return RankRecording(
        rank=header.rank,
        world_size=header.world_size,
        hostname=header.hostname,
        device=header.device,
        backend=header.backend,
        torch=header.torch,
        steps_from=end.source if end else header.steps_from,
        steps=steps,
        settled_step=lines.plan.settled if lines.plan else None,
        untraced_step_s=float(np.median(durations)) if len(durations) else None,
        num_untraced_steps=len(durations),
        untraced_spread_s=_spread(durations),
        traced_steps=lines.window.steps,
        recorder_s=lines.recorder_ns / 1e9,
        flops_by_type=lines.flops.flops_by_type,
        flops_problem=lines.flops.problem,
        peak_memory_bytes=_last(_column(lines.rows, "peak_memory_bytes"), np.nanmax),
        num_alloc_retries=_last(_column(lines.rows, "num_alloc_retries"), np.nanmax),
        ended_by=end.reason if end else None,
        disturbed_from=lines.plan.flops_step if lines.plan else None,
        started=_start_times(lines.started),
        is_pooled=end is not None and end.is_pooled,
        stopped_by=lines.stop.reason if lines.stop else None,
        loader_workers=loader_workers,
        problems=tuple(_problems(lines, header.rank)),
        stall_window=_stall_window(lines.stall_window),
    )


def _start_times(started: Started | None) -> StartTimes | None:
    if started is None:
        return None
    return StartTimes(
        process_s=None if started.process_ns is None else started.process_ns / 1e9,
        torch_s=started.torch_ns / 1e9,
        groups=_in_seconds(started.groups),
        evaluations=_in_seconds(started.evaluations),
        loaders=_in_seconds(started.loaders),
        compilation_s=started.compilation_s,
        bytecode=started.bytecode,
        bytecode_s=None if started.bytecode_ns is None else started.bytecode_ns / 1e9,
    )


def _in_seconds(spans_ns: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    return tuple((begin_ns / 1e9, end_ns / 1e9) for begin_ns, end_ns in spans_ns)


def _stall_window(window: StallWindowLine | None) -> StallWindowSteps | None:
    if window is None or not window.steps:
        return None
    return StallWindowSteps(steps=window.steps, due=window.due, period=window.period)


def _column(rows: Sequence[StepLine], name: str) -> NDArray[np.float64]:
    return np.array([row.numbers[name] for row in rows], dtype=np.float64)


def _steps(rows: Sequence[StepLine], header: Header) -> Steps:
    columns = {name: _column(rows, name) for name in header.columns if name != "kind"}
    return Steps(
        number=columns["step"].astype(np.int64),
        start_ns=columns["start_ns"].astype(np.int64) + header.base_unix_ns,
        duration_s=columns["duration_ns"] / 1e9,
        loader_s=columns["loader_ns"] / 1e9,
        # missing in recordings of version 0.1
        checkpoint_s=columns.get("checkpoint_ns", np.zeros(len(rows))) / 1e9,
        loader_start_s=_seconds(columns, "loader_start_ns"),
        evaluation_s=_seconds(columns, "evaluation_ns"),
        collection_s=_seconds(columns, "collection_ns"),
        compilation_s=_seconds(columns, "compilation_ns"),
        logging_s=_seconds(columns, "logging_ns"),
        num_full_collections=columns.get("num_full_collections"),
        num_loader_ends=columns.get("num_loader_ends"),
        evaluation_loader_s=_seconds(columns, "evaluation_loader_ns"),
        model_s=_seconds(columns, "model_ns"),
        num_known_tokens=columns.get("num_known_tokens"),
        num_alloc_retries=columns["num_alloc_retries"],
        num_samples=columns["num_samples"],
        num_tokens=columns["num_tokens"],
        num_backward=columns["num_backward"].astype(np.int64),
        loss=columns["loss"],
        is_skipped=columns["is_skipped"] == 1,
        kind=tuple(row.kind for row in rows),
    )


def _add_late(steps: Steps, lines: _Lines) -> None:
    """Add the losses, and whether a step was skipped, that were still on the GPU when the rows were written."""
    row_of = {int(number): row for row, number in enumerate(steps.number)}
    for step, loss in lines.losses.items():
        if step in row_of:
            steps.loss[row_of[step]] = loss
    for step, skipped in lines.skipped.items():
        if step in row_of:
            steps.is_skipped[row_of[step]] |= skipped


def _seconds(columns: dict[str, NDArray[np.float64]], name: str) -> NDArray[np.float64] | None:
    """Return a column in seconds; None if the recorder was too old to write it."""
    column = columns.get(name)
    return None if column is None else column / 1e9


def _untraced(steps: Steps, plan: PlanLine | None) -> NDArray[np.bool_]:
    """Return which steps were measured before the recorder slowed any of them down."""
    if plan is None:
        return np.zeros(len(steps.number), dtype=np.bool_)
    after = steps.number >= plan.settled - plan.num_stable
    is_before = steps.number < plan.flops_step
    chosen: NDArray[np.bool_] = steps.is_ordinary & after & is_before
    return chosen


def _spread(durations: NDArray[np.float64]) -> float | None:
    """Return the standard deviation, estimated by the median absolute deviation; None: too few steps."""
    if len(durations) < _MIN_FOR_SPREAD:
        return None
    return _NORMAL_MAD * float(np.median(np.abs(durations - np.median(durations))))


def _last(values: NDArray[np.float64], choose: Any) -> int | None:
    return None if np.isnan(values).all() else int(choose(values))


def _problems(lines: _Lines, rank: int) -> list[Quality]:
    effects: dict[str, str] = {}  # by problem
    if lines.window.problem:
        effects[lines.window.problem] = _NO_TRACE
    effects |= _effects_at_end(lines.end)
    if lines.bad:
        problem = f"{len(lines.bad)} lines of its steps cannot be read, possibly because the disk was full"
        effects[f"{problem} ({lines.bad[0]})"] = ""
    return [Quality(rank=rank, problem=problem, effect=effect) for problem, effect in effects.items()]


def _effects_at_end(end: End | None) -> dict[str, str]:
    """Return the problems reported at the end of the rank, each with its effect."""
    if end is None:
        lost = f"the last {STEP_FILE_DELAY_S:g} s of its steps may be missing"
        return {f"it ended without an error message, as a killed process does: {lost}": ""}
    effects = {}
    if end.reason != EXIT:
        effects[f"it ended with {end.reason}"] = ""
    if not end.gpu_is_done:
        effects["its GPU did not finish its work: losses and an open trace are lost"] = _NO_TRACE
    if end.num_lost_rows:
        effects[f"{end.num_lost_rows} steps could not be written"] = ""
    if end.num_calls_elsewhere and not end.is_pooled:
        calls = f"at least {end.num_calls_elsewhere:,} calls of the model were made on other threads"
        effects[calls] = "only the calls of one thread are steps: rates and latencies are not those of the whole job"
    if end.num_errors:
        effects[f"the recorder had internal errors, see the {File.LOG.glob} of its host"] = ""
    return effects
