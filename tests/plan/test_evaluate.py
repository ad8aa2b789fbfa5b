"""Published runs replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flatout.errors import InputError, OutputError
from flatout.plan.calibrate import Calibration, fit, predict_logs, prior, update
from flatout.plan.evaluate import evaluate
from flatout.plan.runs import Run, as_case, read_runs
from flatout.plan.shipped import FILE, calibrated_with, fit_and_write, shipped
from flatout.records.plan import PlanEvaluation


@pytest.fixture(scope="module")
def runs(sample: Path) -> list[Run]:
    return read_runs(sample)[0]


@pytest.fixture(scope="module")
def evaluated(runs: list[Run]) -> PlanEvaluation:
    return evaluate(runs, len(runs))


def test_held_out_sources_are_predicted_within_fifteen_per_cent(evaluated: PlanEvaluation) -> None:
    """Constants fitted to other papers' runs only; Calculon has 29.7 % on MT-NLG and 9.1 % on SC21's tables 1 and 2."""
    result = evaluated
    by_source = {one.source: one for one in result.sources}
    assert by_source["Korthikanti"].mape is not None and by_source["Korthikanti"].mape < 0.15
    assert by_source["SC21"].mape is not None and by_source["SC21"].mape < 0.25
    assert result.mape is not None and result.mape < 0.2
    assert result.held_out == "source"


def test_no_layout_that_ran_out_of_memory_is_called_safe(evaluated: PlanEvaluation) -> None:
    bloom = next(one for one in evaluated.sources if one.source == "BLOOM")
    assert (bloom.out_of_memory_rows, bloom.out_of_memory_called_safe) == (4, 0)
    assert bloom.memory_mape is not None and bloom.memory_mape < 0.2


def test_a_source_cannot_teach_its_own_prediction(runs: list[Run], evaluated: PlanEvaluation) -> None:
    """If the rows of one source are made ten times slower, only its own error changes as much."""
    slow = [
        Run(source=r.source, group=r.group, columns=r.columns, peak_memory_bytes=r.peak_memory_bytes,
            ran_out_of_memory=r.ran_out_of_memory,
            step_time_s=r.step_time_s and r.step_time_s * (10 if r.source == "MT-NLG" else 1)) for r in runs
    ]  # fmt: skip
    before = {one.source: one for one in evaluated.sources}["MT-NLG"]
    after = {one.source: one for one in evaluate(slow, len(runs)).sources}["MT-NLG"]
    assert before.bias is not None and after.bias is not None
    assert 1 + after.bias == pytest.approx((1 + before.bias) / 10, rel=1e-6)


def test_regret_is_against_the_best_measured(evaluated: PlanEvaluation) -> None:
    group = next(one for one in evaluated.groups if "GPT-18.4B" in one.group)
    assert group.n == 5
    assert 0 <= group.regret_top5 <= group.regret_top3 <= group.regret_top1 < 0.25
    assert group.regret_top5 == 0.0


def test_three_runs_correct_a_cluster_that_is_slower(runs: list[Run]) -> None:
    own = [run for run in runs if run.source == "SC21" and run.columns["zero"] == 0]
    measured = np.log([run.step_time_s or 0 for run in own]) + np.log(1.3)
    known = shipped()
    corrected = update(as_case(own[:3]), measured[:3], known)
    before, wide = predict_logs(as_case(own[3:]), known)
    after, narrow = predict_logs(as_case(own[3:]), corrected)
    assert np.mean(np.abs(after - measured[3:])) < 0.5 * np.mean(np.abs(before - measured[3:]))
    assert (narrow < wide).all()


def test_the_fit_finds_constants_that_made_the_runs(runs: list[Run]) -> None:
    timed = [run for run in runs if run.step_time_s is not None]
    truth = prior().logs.copy()
    truth[0] += 0.1  # products 10 % faster than the prior has them
    made, _ = predict_logs(as_case(timed), Calibration(logs=truth, covariance=prior().covariance))
    found = fit(as_case(timed), made, [run.source for run in timed])
    again, _ = predict_logs(as_case(timed), found)
    start, _ = predict_logs(as_case(timed), prior())
    assert np.mean(np.abs(again - made)) < 0.5 * np.mean(np.abs(start - made))


def test_a_written_fit_is_read_back(runs: list[Run], tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    found = fit_and_write(runs, path)
    assert np.allclose(shipped(path).logs, found.logs, atol=1e-4)
    with pytest.raises(OutputError, match="exists already"):
        fit_and_write(runs, path)


def test_shipped_constants_are_fitted_to_more_than_ten_sources() -> None:
    assert shipped().num_runs > 500
    assert FILE.read_text().count("torchtitan") == 1


def test_own_runs_calibrate(sample: Path) -> None:
    corrected = calibrated_with(sample, shipped())
    assert corrected.num_runs > 30
    assert corrected.offset_sd < shipped().offset_sd


def test_rows_without_what_the_model_needs_are_left_out(runs: list[Run]) -> None:
    assert "Llama3" not in {run.source for run in runs}  # no micro-batch, no step time


@pytest.mark.parametrize(
    ("text", "message"),
    [("a,b\n1,2\n", "lacks: layers"), ("", "lacks: layers")],
)
def test_a_csv_of_something_else_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_nothing_to_replay_and_nothing_to_hold_out_are_told(runs: list[Run]) -> None:
    with pytest.raises(InputError, match="no row of 7"):
        evaluate([], 7)
    with pytest.raises(InputError, match="there must be two"):
        evaluate([run for run in runs if run.source == "SC21"], 22)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("Selene: 8x HDR 200Gb/s per node", 25e9),
        ("1600 Gbps/node RoCE", 25e9),
        ("100Gb/s IB per node, NVLink", 100e9 / 8 / 8),
        ("Jean Zay: NVLink, 4x Omni-Path links/node", 6.25e9),
        ("Grand Teton, 400 Gb/s RDMA per GPU", 50e9),
        ("NVLink4 + IB 8x50 GB/s", 50e9),
        ("800 Gb/s per node, 150 GB/s intra-node", 12.5e9),
    ],
)
def test_words_about_the_network_are_read(text: str, rate: float) -> None:
    from flatout.plan.runs import _node_rate

    found = _node_rate(text, 8)
    assert found is not None and found / 8 == pytest.approx(rate)
