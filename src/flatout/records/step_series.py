"""The steps that a framework wrote into the log of a training, in order, and the change from one log to another."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class LogFormat(StrEnum):
    """The framework whose lines a log has."""

    MEGATRON = "Megatron-LM"
    NEMO = "NeMo"
    DEEPSPEED = "DeepSpeed"
    TORCHTITAN = "torchtitan"
    MLPERF = "MLPerf"


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One entry per line of the log that states steps. A rate that the framework does not write is an empty tuple."""

    format: LogFormat
    number: tuple[int, ...]  # of the last step that a line stands for
    step_s: tuple[float, ...]  # the mean over the steps since the line before
    samples_per_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()  # as written: torchtitan's are of one GPU
    flop_per_s: tuple[float, ...] = ()  # of one GPU
    written_s: tuple[float, ...] = ()  # when each line was written, in seconds since 1970; empty if not recorded
    num_skipped: int = 0  # lines of steps whose times cannot be known


class LogSide(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one log, without its first line, which has the start of the training in it."""

    path: str
    format: LogFormat
    num_lines: int
    step_s: float  # the median
    low_step_s: float  # the quartiles
    high_step_s: float
    mean_step_s: float
    samples_per_s: float | None  # medians; null if the log has no such rate
    tokens_per_s: float | None
    flop_per_s: float | None


class LogChange(msgspec.Struct, frozen=True, kw_only=True):
    """From the training of log A to that of log B, one run each."""

    a: LogSide
    b: LogSide
    ratio: float  # median step of B / of A
    ratio_range: tuple[float, float]  # 95 % interval for the steps of these two runs, without what differs between runs
    speedup: float  # by a rate that both logs have, else by the step time
    speedup_by: str  # samples_per_s, tokens_per_s or step_s
    has_same_work: bool | None  # whether a step has as many samples or tokens; null: unknown
