"""The steps that a framework wrote into the log of a training: their times and rates, in order."""

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
    num_skipped: int = 0  # lines of steps whose times cannot be known
