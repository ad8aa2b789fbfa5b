"""Read the steps that Megatron-LM, NeMo, DeepSpeed, torchtitan or MLPerf's logger wrote into the log of a training.

In: a path. Out: a `StepSeries`, or None if no line of the file is of these. The format is the one with most lines.
Formats: Megatron-LM `training_log`, NeMo's progress printer, DeepSpeed's `wall_clock_breakdown` and the timer of its
engines, torchtitan's metrics, and mlperf_logging's `mllog`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flatout.errors import InputError
from flatout.input_files import bounded_log, decode_json, open_file
from flatout.records.step_series import LogFormat, StepSeries

MAX_BYTES = 256 << 20
_NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d{1,3})?)"
_MEGATRON = re.compile(rf"\biteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): {_NUMBER}")
_MEGATRON_FLOPS = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\): {_NUMBER}")
_MEGATRON_BATCH = re.compile(r"global batch size:\s*(\d+)")
_NEMO = re.compile(rf"\bglobal_step: (\d+)\b.*?\btrain_step_timing in s: {_NUMBER}")
_NEMO_BATCH = re.compile(r"\bglobal_batch_size: (\d+)")
_DEEPSPEED = re.compile(rf"\bsteps: (\d+) loss: \S+ iter time \(s\): {_NUMBER}(?: samples/sec: {_NUMBER})?")
_TITAN = re.compile(r"\bstep:\s*(\d+)\s+loss:")
_TITAN_RATE = re.compile(rf"\btps:\s*{_NUMBER}")
_TITAN_FLOPS = re.compile(rf"\btflops:\s*{_NUMBER}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[,.](\d{1,6}))?")
_MLPERF = ":::MLLOG "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Line(NamedTuple):
    """What one line says of steps."""

    number: int
    step_s: float | None  # None: the time at which the line was written says it
    written_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    flop_per_s: float | None = None


def read_training_log(path: Path) -> StepSeries | None:
    """Read the log. Raises InputError if it cannot be read."""
    lines: dict[LogFormat, list[_Line]] = defaultdict(list)
    try:
        with open_file(path) as file:
            text = bounded_log(file.read(MAX_BYTES).decode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint="check its path") from error
    mlperf = _Mlperf()
    for raw in text.splitlines():
        line = _COLOUR.sub("", raw)
        for log_format, parse in _PARSERS.items():
            found = parse(line)
            if found is not None:
                lines[log_format].append(found._replace(written_s=_written_s(line)))
        if _MLPERF in line:
            lines[LogFormat.MLPERF] += mlperf.add(line.partition(_MLPERF)[2])
    if not lines:
        return None
    log_format = max(lines, key=lambda each: len(lines[each]))
    return _series(log_format, lines[log_format])


def _series(log_format: LogFormat, lines: list[_Line]) -> StepSeries:
    """Return the series; lines whose step time is unknown, or no time, are counted."""
    timed: list[tuple[_Line, float]] = []
    before: _Line | None = None
    for line in lines:
        step_s = line.step_s if line.step_s is not None else _between(before, line)
        before = line
        if step_s is not None and math.isfinite(step_s) and step_s > 0:
            timed.append((line, step_s))
    return StepSeries(
        format=log_format,
        number=tuple(line.number for line, _ in timed),
        step_s=tuple(step_s for _, step_s in timed),
        samples_per_s=_rates(timed, "samples_per_s"),
        tokens_per_s=_rates(timed, "tokens_per_s"),
        flop_per_s=_rates(timed, "flop_per_s"),
        written_s=_rates(timed, "written_s"),
        num_skipped=len(lines) - len(timed),
    )


def _between(before: _Line | None, line: _Line) -> float | None:
    """Return the time of a step by the times at which two lines were written."""
    if before is None or line.written_s is None or before.written_s is None or line.number <= before.number:
        return None
    return (line.written_s - before.written_s) / (line.number - before.number)


def _rates(timed: list[tuple[_Line, float]], name: str) -> tuple[float, ...]:
    """Return a rate, or the times, of all lines; nothing if one of them lacks it."""
    rates = [getattr(line, name) for line, _ in timed]
    return tuple(rates) if all(rate is not None and math.isfinite(rate) for rate in rates) else ()


def _value(match: re.Match[str] | None, group: int = 1) -> float | None:
    if match is None or match[group] is None:
        return None
    try:
        return float(match[group].replace(",", ""))
    except (ValueError, OverflowError):
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _rate(count: float | None, seconds: float | None) -> float | None:
    return count / seconds if count is not None and seconds else None


def _megatron(line: str) -> _Line | None:
    match = _MEGATRON.search(line)
    if match is None:
        return None
    step_s = _scaled(_value(match, 2), 1e-3)
    return _Line(
        number=int(match[1][:18]),
        step_s=step_s if step_s is not None else math.nan,
        samples_per_s=_rate(_value(_MEGATRON_BATCH.search(line)), step_s),
        flop_per_s=_scaled(_value(_MEGATRON_FLOPS.search(line)), 1e12),
    )


def _nemo(line: str) -> _Line | None:
    match = _NEMO.search(line)
    if match is None:
        return None
    step_s = _value(match, 2)
    samples_per_s = _rate(_value(_NEMO_BATCH.search(line)), step_s)
    return _Line(int(match[1][:18]), step_s if step_s is not None else math.nan, samples_per_s=samples_per_s)


def _deepspeed(line: str) -> _Line | None:
    match = _DEEPSPEED.search(line)
    if match is None:
        return None
    step_s = _value(match, 2)
    return _Line(int(match[1][:18]), step_s if step_s is not None else math.nan, samples_per_s=_value(match, 3))


def _titan(line: str) -> _Line | None:
    match = _TITAN.search(line)
    rate = _value(_TITAN_RATE.search(line))
    if match is None or rate is None:
        return None
    return _Line(
        number=int(match[1][:18]),
        step_s=None,
        tokens_per_s=rate,
        flop_per_s=_scaled(_value(_TITAN_FLOPS.search(line)), 1e12),
    )


def _written_s(line: str) -> float | None:
    """Return the first time stamp of the line in seconds; None without one."""
    match = _TIME.search(line)
    if match is None:
        return None
    try:
        whole_s = datetime.fromisoformat(f"{match[1]} {match[2]}").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return whole_s + float(f"0.{match[3] or 0}")


_PARSERS: Mapping[LogFormat, Callable[[str], _Line | None]] = {
    LogFormat.MEGATRON: _megatron,
    LogFormat.NEMO: _nemo,
    LogFormat.DEEPSPEED: _deepspeed,
    LogFormat.TORCHTITAN: _titan,
}


class _Mlperf:
    """Follows an mllog: the samples at two points in time, and the size of the batch, give the time of a step."""

    def __init__(self) -> None:
        self._batch: float | None = None
        self._before: tuple[float, float] | None = None  # samples, seconds

    def add(self, text: str) -> list[_Line]:
        try:
            record = decode_json(text)
        except msgspec.DecodeError:
            return []
        if not isinstance(record, dict):
            return []
        if record.get("key") == "global_batch_size":
            self._batch = _positive(record.get("value"))
        metadata = record.get("metadata")
        samples = _positive(metadata.get("samples_count")) if isinstance(metadata, dict) else None
        time_s = _scaled(_positive(record.get("time_ms")), 1e-3)
        if samples is None or time_s is None:
            return []
        before, self._before = self._before, (samples, time_s)
        if before is None or self._batch is None or samples <= before[0] or time_s <= before[1]:
            return []
        samples_per_s = (samples - before[0]) / (time_s - before[1])
        number = min(int(samples / self._batch), 1 << 53)
        return [_Line(number, self._batch / samples_per_s, written_s=time_s, samples_per_s=samples_per_s)]


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18
    return float(value) if is_number else None
