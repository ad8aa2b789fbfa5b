"""Logs of trainings: the steps that each framework writes, and what `flatout track add` makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.read.training_log import read_training_log
from flatout.records.step_series import LogFormat, StepSeries
from flatout.track.add import AddRequest, add_results
from flatout.training_log_pipeline import read_result_or_log

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


def test_too_few_steps_are_refused_with_the_number(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(LINES[LogFormat.DEEPSPEED][:3]))
    with pytest.raises(InputError, match="at least 5 steps, but is a log of DeepSpeed with 3"):
        read_result_or_log(path)
