"""Logs of trainings: the steps that each framework writes, and what `flatout track add` makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import flatout.api
from flatout.api.results import LogDiffResult
from flatout.conditions.met import met_by_log_change
from flatout.conditions.words import parse_conditions
from flatout.errors import InputError, UsageError
from flatout.read.training_log import read_training_log
from flatout.records.step_series import LogFormat, StepSeries
from flatout.track.add import AddRequest, add_results
from flatout.training_log_pipeline import log_totals, read_result_or_log

STEPS = range(1, 9)
LINES = {
    LogFormat.MEGATRON: [
        f" [2026-01-02 03:04:0{step}] iteration {step:8d}/     500 | consumed samples: {256 * step:12d} |"
        f" elapsed time per iteration (ms): {1000 + step}.5 | throughput per GPU (TFLOP/s/GPU): 400.5 |"
        " learning rate: 1.0E-04 | global batch size:   256 | lm loss: 1.0E+00 |"
        for step in STEPS
    ],
    LogFormat.NEMO: [
        f"Training epoch 0, iteration {step}/99 | lr: 1e-04 | global_batch_size: 512 | global_step: {step} |"
        f" reduced_train_loss: 11.0 | train_step_timing in s: {2 + step / 100} | consumed_samples: {512 * step}"
        for step in STEPS
    ],
    LogFormat.DEEPSPEED: [f"steps: {step} loss: 2.3456 iter time (s): 0.5{step} samples/sec: 31.250" for step in STEPS],
    LogFormat.TORCHTITAN: [
        f"[titan] 2026-01-02 03:04:{5 * step:02d},250 - root - INFO - \x1b[31mstep: {10 * step:2d}  \x1b[32mloss:  5.1"
        "  \x1b[33mmemory: 21.5GiB(22.6%)  \x1b[34mtps: 7,123  \x1b[36mtflops: 60.10  \x1b[35mmfu: 19.1%\x1b[39m"
        for step in STEPS
    ],
    LogFormat.MLPERF: [
        f":::MLLOG {json.dumps(record)}"
        for record in (
            {"time_ms": 1000, "event_type": "POINT_IN_TIME", "key": "global_batch_size", "value": 64},
            *(
                {"time_ms": 1000 + 4000 * step, "key": "block_stop", "metadata": {"samples_count": 640 * step}}
                for step in STEPS
            ),
        )
    ],
}


def series_of(folder: Path, log_format: LogFormat) -> StepSeries:
    path = folder / "train.log"
    path.write_text("\n".join(["a line of the script", *LINES[log_format], "done"]))
    series = read_training_log(path)
    assert series is not None
    assert series.format == log_format
    return series


def test_megatron_writes_milliseconds_per_iteration_and_rates(tmp_path: Path) -> None:
    series = series_of(tmp_path, LogFormat.MEGATRON)
    assert series.number == tuple(STEPS)
    assert series.step_s == pytest.approx([1.0005 + step / 1000 for step in STEPS])
    assert series.samples_per_s[0] == pytest.approx(256 / 1.0015)
    assert series.flop_per_s == pytest.approx([400.5e12] * 8)


def test_nemo_writes_seconds_per_step(tmp_path: Path) -> None:
    series = series_of(tmp_path, LogFormat.NEMO)
    assert series.step_s == pytest.approx([2 + step / 100 for step in STEPS])
    assert series.samples_per_s[-1] == pytest.approx(512 / 2.08)


def test_deepspeed_writes_seconds_and_samples(tmp_path: Path) -> None:
    series = series_of(tmp_path, LogFormat.DEEPSPEED)
    assert series.step_s == pytest.approx([0.5 + step / 100 for step in STEPS])
    assert series.samples_per_s == (31.25,) * 8


def test_torchtitan_writes_no_step_time_so_it_comes_from_the_time_stamps(tmp_path: Path) -> None:
    series = series_of(tmp_path, LogFormat.TORCHTITAN)
    assert series.step_s == pytest.approx([0.5] * 7)  # 10 steps in 5 s; the first line has none before it
    assert series.number == tuple(10 * step for step in STEPS)[1:]
    assert series.tokens_per_s == (7123.0,) * 7
    assert series.num_skipped == 1


def test_an_mllog_gives_the_time_of_a_step_by_samples_and_batch(tmp_path: Path) -> None:
    series = series_of(tmp_path, LogFormat.MLPERF)
    assert series.step_s == pytest.approx([0.4] * 7)  # 640 samples in 4 s, in batches of 64
    assert series.samples_per_s == pytest.approx([160.0] * 7)


def test_a_file_without_such_lines_is_no_log_of_a_training(tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text("nothing\niteration 5 is over\n")
    assert read_training_log(path) is None
    with pytest.raises(InputError, match="is not the JSON of a result"):
        read_result_or_log(path)


def test_a_log_is_tracked_by_its_median_step_without_the_first_line(tmp_path: Path) -> None:
    series_of(tmp_path, LogFormat.MEGATRON)
    request = AddRequest(job="gpt", machine="8 H100", is_elsewhere=True)
    (result,), _ = add_results(tmp_path / "history.jsonl", [tmp_path / "train.log"], request, read_result_or_log)
    measures = {measure.name: measure for measure in result.measures}
    assert measures["step_s"].value == pytest.approx(1.0055)  # steps 2 to 8
    assert measures["step_s"].direction == "lower"
    assert set(measures) == {"step_s", "samples_per_s", "flop_per_s"}


def megatron(path: Path, step_ms: float, *, first_ms: float = 0, steps: Sequence[int] = range(1, 41)) -> Path:
    """Write a log whose steps take `step_ms` and, in turn, 1 % more and less; 5 s pass before steps 11 and 31."""
    lines, now = [], datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
    for place, step in enumerate(steps):
        took_ms = step_ms * (1 + 0.01 * (place % 3 - 1)) + (first_ms if place == 0 else 0)
        now += timedelta(milliseconds=took_ms, seconds=5 if step in (11, 31) else 0)
        lines.append(
            f" [{now:%Y-%m-%d %H:%M:%S}.{now.microsecond:06d}] iteration {step}/ 99 | elapsed time per iteration (ms):"
            f" {took_ms:.2f} | global batch size: 64 |"
        )
    path.write_text("\n".join(lines))
    return path


def test_two_logs_are_compared_by_their_rates_with_an_interval(tmp_path: Path) -> None:
    a, b = megatron(tmp_path / "a.log", 1000), megatron(tmp_path / "b.log", 800, first_ms=9000)
    change = flatout.api.diff(a, b)
    assert isinstance(change, LogDiffResult)
    assert change.speedup == pytest.approx(1.25, rel=0.01)
    assert change.ratio == pytest.approx(0.8, rel=0.01)
    assert change.ratio_range[0] <= 0.8 <= change.ratio_range[1] < 0.82
    assert (change.speedup_by, change.has_same_work) == ("samples_per_s", True)
    assert change.b.mean_step_s == pytest.approx(0.8, rel=0.01), "without the first line"
    assert change.to_dict()["schema"] == "flatout/log-diff"
    assert "B is 1.25 times as fast as A by samples per second" in change.to_text()
    assert met_by_log_change(change, parse_conditions("diff", ["slower=5%"])) == []
    slower = flatout.api.diff(b, a)
    assert met_by_log_change(slower, parse_conditions("diff", ["slower=24%"]))  # type: ignore[arg-type]
    assert not met_by_log_change(slower, parse_conditions("diff", ["slower=26%"]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs traces"):
        met_by_log_change(change, parse_conditions("diff", ["new-finding"]))


def test_a_log_is_not_compared_with_anything_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is one and .* is not"):
        flatout.api.diff(megatron(tmp_path / "a.log", 1000), tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        flatout.api.diff(tmp_path / "a.log", tmp_path / "missing")


def test_steps_made_again_after_a_resumption_are_recomputed(tmp_path: Path) -> None:
    """40 steps of a second, 21 to 25 made twice; the first takes 4 s more, and 2 x 5 s are between steps."""
    steps = [*range(1, 26), *range(21, 41)]
    totals = log_totals(megatron(tmp_path / "a.log", 1000, first_ms=4000, steps=steps), 8)
    assert totals is not None
    spent_s = {name: ns / 8e9 for name, ns in totals.ns.items() if ns}
    expected = {"productive": 40, "recomputed": 5, "start_up": 4, "unknown": 10}
    assert spent_s == pytest.approx(expected, abs=0.2)
    assert (totals.num_steps, totals.num_attempts, totals.num_devices) == (40, 2, 8)
    assert totals.failures == ("the log resumes before step 21: why is not in it",)


def test_a_log_without_time_stamps_has_only_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(LINES[LogFormat.NEMO]))
    totals = log_totals(path, 1)
    assert totals is not None
    assert {name for name, ns in totals.ns.items() if ns} == {"productive"}
    assert totals.ns["productive"] / 1e9 == pytest.approx(sum(2 + step / 100 for step in STEPS))
    assert log_totals(Path(pytest.__file__), 1) is None


def test_too_few_steps_are_refused_with_the_number(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(LINES[LogFormat.DEEPSPEED][:3]))
    with pytest.raises(InputError, match="at least 5 steps, but is a log of DeepSpeed with 3"):
        read_result_or_log(path)
