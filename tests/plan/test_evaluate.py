"""Published runs replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flatout.catalog.run_spellings import run_spellings
from flatout.errors import InputError, OutputError
from flatout.plan.calibrate import Calibration, fit, most_informative, predict_logs, prior, update
from flatout.plan.constants import NAMES
from flatout.plan.evaluate import evaluate
from flatout.plan.memory import MemoryConstants
from flatout.plan.run_calibration import corrected_by, fit_and_write, runs_of_rows
from flatout.plan.runs import MeasuredRun, as_inputs, read_runs
from flatout.plan.shipped import FILE, shipped, shipped_without
from flatout.records.plan import PlanEvaluation

STORED = json.loads(FILE.read_text())


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    """The mean of 20 draws of three rows is no other code than that of 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatout.plan.evaluate.NUM_DRAWS", 3)
        yield


@pytest.fixture(scope="module")
def runs(sample: Path) -> list[MeasuredRun]:
    return read_runs(sample)[0]


@pytest.fixture(scope="module")
def evaluated(runs: list[MeasuredRun]) -> PlanEvaluation:
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
    assert bloom.memory_mape is not None and bloom.memory_mape < 0.07


def test_few_layouts_that_ran_are_called_unsafe(evaluated: PlanEvaluation) -> None:
    """Also if those that do not say what they recompute are taken to recompute nothing."""
    assert evaluated.called_unsafe is not None and evaluated.called_unsafe_as_read is not None
    assert evaluated.called_unsafe < 0.10
    assert evaluated.called_unsafe_as_read >= evaluated.called_unsafe
    assert sum(one.ran_rows + one.out_of_memory_rows for one in evaluated.sources) == evaluated.rows_used


def test_the_gate_hides_what_is_called_unsafe_from_the_ranking(runs: list[MeasuredRun]) -> None:
    """On a GPU of 1 GiB nothing is safe and nothing is offered; on one of 10 TiB the gate changes nothing."""
    from dataclasses import replace

    for memory_gib, is_open in ((1.0, False), (10240.0, True)):
        resized = [replace(run, columns=run.columns | {"memory": memory_gib * 2**30}) for run in runs]
        result = evaluate(resized, len(resized))
        assert result.called_unsafe == (0.0 if is_open else 1.0)
        for group in result.groups:
            assert group.num_safe == (group.n if is_open else 0)
            assert group.regret_top3_gated == (group.regret_top3 if is_open else None)


def test_a_source_that_the_shipped_constants_have_not_seen_is_predicted_by_them(runs: list[MeasuredRun]) -> None:
    from dataclasses import replace

    own = [replace(run, source="new cluster") for run in runs if run.source == "SC21"]
    alone = evaluate(own, len(own)).sources[0]
    beside = {one.source: one for one in evaluate([*own, *runs], len(runs)).sources}["new cluster"]
    timed = [run for run in own if run.step_time_s is not None]
    expected = np.exp(predict_logs(as_inputs(timed), shipped())[0]) / np.array([run.step_time_s for run in timed]) - 1
    assert alone.bias == beside.bias == pytest.approx(float(np.mean(expected)))


def test_the_floor_is_told(runs: list[MeasuredRun], evaluated: PlanEvaluation) -> None:
    """Fitted to its own rows a source is predicted best; rows that are 10 % apart are 5 % from their median."""
    from dataclasses import replace

    for one in evaluated.sources:
        if one.mape is not None and one.mape_in_sample is not None:
            assert one.mape_in_sample <= one.mape + 0.01
    first = next(run for run in runs if run.source == "SC21")
    twice = [*runs, replace(first, step_time_s=(first.step_time_s or 0.0) * 1.1)]
    sc21 = {one.source: one for one in evaluate(twice, len(twice)).sources}["SC21"]
    assert sc21.repeated_rows == 2
    assert sc21.repeats_differ_by == pytest.approx(0.05 / 1.05)


def test_a_source_cannot_teach_its_own_prediction(runs: list[MeasuredRun], evaluated: PlanEvaluation) -> None:
    """If the rows of one source are made ten times slower, only its own error changes as much."""
    slow = [
        MeasuredRun(source=r.source, group=r.group, columns=r.columns, peak_memory_bytes=r.peak_memory_bytes,
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


def test_three_runs_correct_a_cluster_that_is_slower(runs: list[MeasuredRun]) -> None:
    own = [run for run in runs if run.source == "SC21" and run.columns["zero"] == 0]
    measured = np.log([run.step_time_s or 0 for run in own]) + np.log(1.3)
    known = shipped()
    corrected = update(as_inputs(own[:3]), measured[:3], known)
    before, wide = predict_logs(as_inputs(own[3:]), known)
    after, narrow = predict_logs(as_inputs(own[3:]), corrected)
    assert np.mean(np.abs(after - measured[3:])) < 0.5 * np.mean(np.abs(before - measured[3:]))
    assert (narrow < wide).all()


def test_the_fit_finds_constants_that_made_the_runs(runs: list[MeasuredRun]) -> None:
    timed = [run for run in runs if run.step_time_s is not None]
    truth = prior().logs.copy()
    truth[NAMES.index("scores")] -= 0.8  # the products of unfused attention, which no offset of a source can stand for
    made, _ = predict_logs(
        as_inputs(timed), Calibration(logs=truth, covariance=prior().covariance, effects=prior().effects)
    )
    found = fit(as_inputs(timed), made, [run.source for run in timed])
    again, _ = predict_logs(as_inputs(timed), found)
    start, _ = predict_logs(as_inputs(timed), prior())
    assert np.mean(np.abs(again - made)) < 0.65 * np.mean(np.abs(start - made))
    assert found.logs[NAMES.index("scores")] < prior().logs[NAMES.index("scores")] - 0.15


def test_an_offset_of_one_gpu_is_not_taken_for_anothers(runs: list[MeasuredRun]) -> None:
    """One of a source's two kinds of GPU is 20 % slower than predicted: two runs of each kind show which."""
    from dataclasses import replace

    own = [run for run in runs if run.source == "SC21" and run.columns["zero"] == 0][:6]
    slow = [replace(run, columns=run.columns | {"memory": 40 * 2.0**30}) for run in own]
    known = shipped()
    first, _ = predict_logs(as_inputs(own), known)
    second, _ = predict_logs(as_inputs(slow), known)
    corrected = update(as_inputs([*own[:2], *slow[:2]]), np.concatenate([first[:2], second[:2] + 0.2]), known)
    moved = predict_logs(as_inputs(slow[2:]), corrected)[0] - predict_logs(as_inputs(own[2:]), corrected)[0]
    assert np.mean(moved) > 0.08


def test_runs_to_measure_are_chosen_by_their_layouts_alone(runs: list[MeasuredRun]) -> None:
    """And they leave less doubt on the others than any three in a row do."""
    own = [run for run in runs if run.source == "SC21"]
    inputs, known = as_inputs(own), shipped()
    chosen = most_informative(inputs, known, 3)
    assert len(set(chosen)) == 3

    def doubt(rows: list[int]) -> float:
        some = as_inputs([own[row] for row in rows])
        measured = update(some, predict_logs(some, known)[0], known)
        return float(np.mean(predict_logs(inputs, measured)[1] / predict_logs(inputs, known)[1]))

    assert doubt(chosen) < min(doubt([row, row + 1, row + 2]) for row in range(len(own) - 2))


def test_a_written_fit_is_read_back(runs: list[MeasuredRun], tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    found = fit_and_write(runs, path)
    assert np.allclose(shipped(path).logs, found.logs, atol=1e-4)
    with pytest.raises(OutputError, match="already exists"):
        fit_and_write(runs, path)


def test_shipped_constants_are_fitted_to_more_than_ten_sources() -> None:
    assert shipped().num_runs > 500
    assert len(STORED["sources"]) > 10


def test_constants_fitted_without_a_source_are_shipped_for_each() -> None:
    """And differ from those fitted to all runs."""
    assert set(STORED["without"]) == set(STORED["sources"])
    for source in STORED["sources"]:
        held_out = shipped_without(source)
        assert held_out is not None
        assert held_out[0].logs.shape == shipped().logs.shape
    bloom = shipped_without("BLOOM")
    assert bloom is not None
    assert bloom[1] != MemoryConstants()
    assert not np.allclose(bloom[0].logs, shipped().logs)
    assert shipped_without("a source that nobody has seen") is None


def test_the_memory_models_defaults_are_the_stored_fit() -> None:
    for name, value in STORED["memory"].items():
        assert getattr(MemoryConstants(), name) == pytest.approx(value, rel=0.005)


def test_own_runs_calibrate(sample: Path) -> None:
    corrected = corrected_by(runs_of_rows(sample)[0], shipped())
    assert corrected.num_runs > 30
    inputs = as_inputs([run for run in read_runs(sample)[0] if run.step_time_s is not None])
    assert (predict_logs(inputs, corrected)[1] < predict_logs(inputs, shipped())[1]).all()


def test_rows_without_what_the_model_needs_are_left_out(runs: list[MeasuredRun]) -> None:
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


def test_nothing_to_replay_is_told() -> None:
    with pytest.raises(InputError, match="no row of 7"):
        evaluate([], 7)


def test_a_source_alone_in_a_file_is_predicted_without_it_too(
    runs: list[MeasuredRun], evaluated: PlanEvaluation
) -> None:
    alone = evaluate([run for run in runs if run.source == "SC21"], 22)
    beside = {one.source: one for one in evaluated.sources}["SC21"]
    assert alone.held_out == "source"
    assert alone.sources[0] == beside
    with_its_own = evaluate([run for run in runs if run.source == "SC21"], 22, shipped=shipped()).sources[0]
    assert with_its_own.bias != beside.bias


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
    node_rate = run_spellings().node_bytes_per_s(text, 8)
    assert node_rate is not None and node_rate / 8 == pytest.approx(rate)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp", "0.5"),
        ("micro_batch", "-1"),
        ("seq_len", "nan"),
        ("heads", "x"),
        ("hidden", "1e308"),
        ("layers", "1.1e15"),
    ],
)
def test_a_row_with_an_impossible_number_is_left_out(name: str, value: str, tmp_path: Path) -> None:
    row = {"layers": "32", "hidden": "4096", "heads": "32", "seq_len": "2048", "gpu": "H100", "num_gpus": "8",
           "tp": "1", "pp": "1", "micro_batch": "1", "global_batch": "8", "step_time_s": "1"}  # fmt: skip
    path = tmp_path / "runs.csv"
    for changed, used in (({}, 1), ({name: value}, 0)):
        path.write_text(",".join(row) + "\n" + ",".join((row | changed).values()) + "\n")
        assert len(read_runs(path)[0]) == used


def test_a_row_with_the_largest_number_is_used(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "layers,hidden,heads,seq_len,gpu,num_gpus,tp,pp,micro_batch,global_batch,step_time_s\n"
        "32,4096,32,2048,H100,8,1,1,1,1e15,1\n"
    )
    assert len(read_runs(path)[0]) == 1


@pytest.mark.parametrize(
    ("sharding", "zero", "shard"),
    [("HSDP", 3, 8), ("ZeRO-1 group 8", 1, 8), ("FSDP full", 3, 0), ("Megatron-FSDP (group 64)", 3, 0), ("", 0, 0)],
)
def test_shards_are_read_from_their_name(sharding: str, zero: int, shard: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "layers,hidden,heads,seq_len,gpu,num_gpus,gpus_per_node,tp,pp,micro_batch,global_batch,step_time_s,sharding\n"
        f"32,4096,32,2048,H100,64,8,1,1,1,64,1,{sharding}\n"
    )
    columns = read_runs(path)[0][0].columns
    assert (columns["zero"], columns["shard"]) == (zero, shard)
