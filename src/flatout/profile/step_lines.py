"""Read `rank{R}.steps.jsonl` into a `RankRecording`: a rank's steps, and the events of its recorder.

In: a file that `inside/` wrote, perhaps truncated by a kill or a full disk; unreadable lines are counted and skipped.
Out: the record, or None if not even the header can be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import EXIT, NUM_STABLE_WARMUP_STEPS, STEP_FILE_DELAY_S, File, StepFileEvent
from flatout.records.events import Quality
from flatout.records.recording import DeviceFacts, RankRecording, StallWindowSteps, Steps

_MIN_FOR_SPREAD = 5
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_NO_TRACE = "this rank's trace is missing or incomplete"
_OF_STEPS = (StepFileEvent.PLAN, StepFileEvent.FLOPS, StepFileEvent.WINDOW, StepFileEvent.STALL_WINDOW)
_decode = msgspec.json.Decoder().decode


class _Lines:
    """The content of a file: the rows after the last restart, and the last event of each name."""

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self.rows: list[list[Any]] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.losses: dict[int, Any] = {}
        self.skipped: dict[int, bool] = {}
        self.recorder_ns = 0
        self.num_unreadable = 0
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            value = _decode(line)
        except msgspec.DecodeError:
            self.num_unreadable += 1
            return
        if isinstance(value, list) and self.header and len(value) == len(self.header["columns"]):
            self.rows.append(value)
        elif isinstance(value, dict) and "columns" in value:
            self.header = value
        elif isinstance(value, dict) and "event" in value:
            self._event(value)
        else:
            self.num_unreadable += 1

    def _event(self, event: dict[str, Any]) -> None:
        name = event["event"]
        self.events[name] = event
        if name == StepFileEvent.RESTART:
            self.rows.clear()
            for forgotten in (
                StepFileEvent.PLAN,
                StepFileEvent.FLOPS,
                StepFileEvent.WINDOW,
                StepFileEvent.STALL_WINDOW,
            ):
                self.events.pop(forgotten, None)
        elif name == StepFileEvent.LOSSES:
            for step, loss, is_skipped in event["values"]:
                self.losses[step] = loss
                if is_skipped is not None:
                    self.skipped[step] = is_skipped
        elif name == StepFileEvent.RECORDER:
            self.recorder_ns += event["cost_ns"]


def read_rank(path: Path) -> RankRecording | None:
    lines = _Lines(path)
    header = lines.header
    if not header:
        return None
    steps = _steps(lines)
    plan = lines.events.get(StepFileEvent.PLAN, {})
    flops = lines.events.get(StepFileEvent.FLOPS, {})
    window = lines.events.get(StepFileEvent.WINDOW, {})
    untraced = _untraced(steps, plan)
    durations = steps.duration_s[untraced]
    end = lines.events.get(StepFileEvent.END)
    return RankRecording(
        rank=header["rank"],
        world_size=header["world_size"],
        hostname=header["hostname"],
        device=msgspec.convert(header["device"], DeviceFacts) if header["device"] else None,
        backend=header["backend"],
        torch=header["torch"],
        steps_from=end["source"] if end else header["steps_from"],
        steps=steps,
        settled_step=plan.get("settled"),
        untraced_step_s=float(np.median(durations)) if len(durations) else None,
        num_untraced_steps=len(durations),
        untraced_spread_s=_spread(durations),
        traced_steps=tuple(window.get("steps", ())),
        recorder_s=lines.recorder_ns / 1e9,
        flops_by_type=flops.get("flops_by_type"),
        flops_problem=flops.get("problem"),
        peak_memory_bytes=_last(_column(lines, "peak_memory_bytes"), np.nanmax),
        num_alloc_retries=_last(_column(lines, "num_alloc_retries"), np.nanmax),
        ended_by=end["reason"] if end else None,
        problems=tuple(_problems(lines, window, end, header["rank"])),
        stall_window=_stall_window(lines.events.get(StepFileEvent.STALL_WINDOW)),
    )


def _stall_window(event: dict[str, Any] | None) -> StallWindowSteps | None:
    if event is None or not event["steps"]:
        return None
    return StallWindowSteps(steps=tuple(event["steps"]), due=event["due"], period=event["period"])


def _column(lines: _Lines, name: str) -> NDArray[np.float64]:
    index = lines.header["columns"].index(name)
    return np.array([_number(row[index]) for row in lines.rows], dtype=np.float64)


def _number(value: Any) -> float:
    """Return a number from JSON, where infinities and NaN are text."""
    return float("nan") if value is None else float(value)


def _steps(lines: _Lines) -> Steps:
    header = lines.header
    columns = {name: _column(lines, name) for name in header["columns"] if name != "kind"}
    loss, is_skipped = columns["loss"], columns["is_skipped"] == 1
    row_of = {int(number): row for row, number in enumerate(columns["step"])}
    for step, value in lines.losses.items():
        if step in row_of:
            loss[row_of[step]] = _number(value)
    for step, skipped in lines.skipped.items():
        if step in row_of:
            is_skipped[row_of[step]] |= skipped
    kinds = header["columns"].index("kind")
    return Steps(
        number=columns["step"].astype(np.int64),
        start_ns=columns["start_ns"].astype(np.int64) + header["base_unix_ns"],
        duration_s=columns["duration_ns"] / 1e9,
        loader_s=columns["loader_ns"] / 1e9,
        # missing in recordings of version 0.1
        checkpoint_s=columns.get("checkpoint_ns", np.zeros(len(lines.rows))) / 1e9,
        loader_start_s=_seconds(columns, "loader_start_ns"),
        evaluation_s=_seconds(columns, "evaluation_ns"),
        collection_s=_seconds(columns, "collection_ns"),
        compilation_s=_seconds(columns, "compilation_ns"),
        logging_s=_seconds(columns, "logging_ns"),
        num_full_collections=columns.get("num_full_collections"),
        num_loader_ends=columns.get("num_loader_ends"),
        num_alloc_retries=columns["num_alloc_retries"],
        num_samples=columns["num_samples"],
        num_tokens=columns["num_tokens"],
        num_backward=columns["num_backward"].astype(np.int64),
        loss=loss,
        is_skipped=is_skipped,
        kind=tuple(row[kinds] for row in lines.rows),
    )


def _seconds(columns: dict[str, NDArray[np.float64]], name: str) -> NDArray[np.float64] | None:
    """Return a column in seconds; None if the recorder was too old to write it."""
    column = columns.get(name)
    return None if column is None else column / 1e9


def _untraced(steps: Steps, plan: dict[str, Any]) -> NDArray[np.bool_]:
    """Return which steps were measured before the recorder slowed any of them down."""
    if not plan:
        return np.zeros(len(steps.number), dtype=np.bool_)
    after = steps.number >= plan["settled"] - NUM_STABLE_WARMUP_STEPS
    is_before = steps.number < plan["flops_step"]
    chosen: NDArray[np.bool_] = steps.is_ordinary & after & is_before
    return chosen


def _spread(durations: NDArray[np.float64]) -> float | None:
    """Return the standard deviation, estimated by the median absolute deviation; None: too few steps."""
    if len(durations) < _MIN_FOR_SPREAD:
        return None
    return _NORMAL_MAD * float(np.median(np.abs(durations - np.median(durations))))


def _last(values: NDArray[np.float64], choose: Any) -> int | None:
    return None if np.isnan(values).all() else int(choose(values))


def _problems(lines: _Lines, window: dict[str, Any], end: dict[str, Any] | None, rank: int) -> list[Quality]:
    effects: dict[str, str] = {}  # by problem
    if window.get("problem"):
        effects[window["problem"]] = _NO_TRACE
    effects |= _effects_at_end(end)
    if lines.num_unreadable:
        effects[f"{lines.num_unreadable} lines of its steps cannot be read, possibly because the disk was full"] = ""
    return [Quality(rank=rank, problem=problem, effect=effect) for problem, effect in effects.items()]


def _effects_at_end(end: dict[str, Any] | None) -> dict[str, str]:
    """Return the problems reported at the end of the rank, each with its effect."""
    if end is None:
        lost = f"the last {STEP_FILE_DELAY_S:g} s of its steps may be missing"
        return {f"it ended without an error message, as a killed process does: {lost}": ""}
    effects = {}
    if end["reason"] != EXIT:
        effects[f"it ended with {end['reason']}"] = ""
    if not end["gpu_is_done"]:
        effects["its GPU did not finish its work: losses and an open trace are lost"] = _NO_TRACE
    if end["num_lost_rows"]:
        effects[f"{end['num_lost_rows']} steps could not be written"] = ""
    if end["num_errors"]:
        effects[f"the recorder had internal errors, see the {File.LOG.glob} of its host"] = ""
    return effects
