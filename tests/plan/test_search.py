"""A plan: its order, its reasons and its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import process_time

import msgspec
import numpy as np
import pytest

from flatout.catalog import all_models
from flatout.errors import InputError
from flatout.plan import search
from flatout.plan.clusters import cluster
from flatout.plan.fits import SAFE
from flatout.plan.huggingface import from_config
from flatout.plan.infeasible import too_large
from flatout.plan.layouts import TrainingSpec, all_layouts
from flatout.plan.search_context import SearchContext, evaluate_layouts
from flatout.plan.shipped import shipped
from flatout.plan_pipeline.calibration import calibrated
from flatout.records.plan import Plan, Software
from flatout.report.plan_text import layout_text

DATA = Path(__file__).parents[1] / "data"
OWN = DATA / "readers"


def setting_of(model: str, machine: str, batch: int = 64, seq: int = 2048, precision: str = "bf16") -> SearchContext:
    found, shares = cluster(machine)
    spec = TrainingSpec(workload=all_models()[model], cluster=found, global_batch=batch, seq=seq)
    return SearchContext(
        spec=spec, precision=precision, matmul_share=shares, software=Software(), calibration=shipped()
    )


@pytest.fixture(scope="module")
def planned() -> Plan:
    return search.plan(setting_of("llama3-8b", "h100x16"))


def test_the_first_layout_is_the_fastest_of_those_that_fit(planned: Plan) -> None:
    context = setting_of("llama3-8b", "h100x16")
    columns = all_layouts(context.spec)
    times, _, probabilities = evaluate_layouts(context, columns)
    safe = probabilities < SAFE
    assert planned.layouts[0].step_time_s == pytest.approx(times[safe].min())
    seconds = [one.step_time_s for one in planned.layouts]
    assert seconds == sorted(seconds)
    assert all(one.out_of_memory_probability < SAFE for one in planned.layouts)


def test_parts_sum_and_intervals_hold_the_prediction(planned: Plan) -> None:
    for one in (*planned.layouts, *planned.neighbours):
        assert sum(one.parts_s.values()) == pytest.approx(one.step_time_s)
        assert sum(one.memory_parts_bytes.values()) == pytest.approx(one.memory_bytes)
        low, high = one.step_time_interval_s
        assert 0 < low < one.step_time_s < high
        assert 0 < one.mfu < 1


def test_each_neighbour_lost_for_a_reason(planned: Plan) -> None:
    assert planned.neighbours
    for one in planned.neighbours:
        assert one.why
        assert one.step_time_s >= planned.layouts[0].step_time_s or one.out_of_memory_probability >= SAFE


def test_the_front_trades_time_for_memory(planned: Plan) -> None:
    """And no valid layout is both faster and clearly smaller than one of it."""
    front = planned.pareto
    assert front[0].layout == planned.layouts[0].layout
    assert [one.step_time_s for one in front] == sorted(one.step_time_s for one in front)
    assert [one.memory_bytes for one in front] == sorted((one.memory_bytes for one in front), reverse=True)
    context = setting_of("llama3-8b", "h100x16")
    times, totals, _ = evaluate_layouts(context, all_layouts(context.spec))
    for one in front:
        better = (times < one.step_time_s * 0.999) & (totals < one.memory_bytes * 0.99)
        assert not better.any()
        tokens = planned.global_batch * planned.seq
        assert one.gpu_hours_per_billion_tokens == pytest.approx(one.step_time_s * 16 / 3600 / tokens * 1e9)


def test_every_layout_that_fits_has_one_in_the_front_as_fast_and_no_larger_by_a_per_cent() -> None:
    """By brute force, of a job small enough that the front is complete."""
    context = setting_of("llama3-8b", "h100x4")
    columns = all_layouts(context.spec)
    times, totals, probabilities = evaluate_layouts(context, columns)
    safe = probabilities < SAFE
    front = search.plan(context).pareto
    assert len(front) < search.MOST_IN_FRONT
    for time, total in zip(times[safe], totals[safe], strict=True):
        assert any(one.step_time_s <= time * (1 + 1e-9) and one.memory_bytes <= total * 1.01 for one in front), (
            f"{time} s, {total} bytes"
        )
    for before, after in pairwise(front):
        assert after.memory_bytes < before.memory_bytes * 0.9951, "half a per cent is no gain"


def test_three_different_layouts_are_worth_measuring(planned: Plan) -> None:
    assert len(set(planned.worth_measuring)) == 3
    assert planned.worth_measuring[0] == planned.layouts[0].layout


def test_twice_the_matmul_rate_helps_most_where_compute_is_most(planned: Plan) -> None:
    assert min(planned.sensitivity, key=lambda name: planned.sensitivity[name]) == "matmul_rate_x2"
    assert all(0.4 < factor <= 1.0 for factor in planned.sensitivity.values())


def test_a_model_that_cannot_fit_names_how_many_gpus_hold_it() -> None:
    with pytest.raises(
        InputError, match=r"below 10 %, but the safest of .* has 100 %: .* need .* of the usable 77.6 GiB per GPU"
    ) as error:
        search.plan(setting_of("llama3.1-405b", "h100x8"))
    gpus = int(error.value.hint.split()[3].replace(",", ""))
    assert search.plan(setting_of("llama3.1-405b", f"h100x{gpus}")).num_fitting > 0


def test_the_hosts_memory_is_taken_where_nothing_fits_without_it() -> None:
    """405 B parameters in bf16 with fp32 gradients and Adam: 18 bytes each; 6 without the optimizer."""
    planned = search.plan(setting_of("llama3.1-405b", "h100x96"))
    assert all(one.layout.offload for one in planned.layouts)
    assert not any(one.layout.offload for one in search.plan(setting_of("llama3.1-405b", "h100x192")).layouts)
    fixed = search.plan(setting_of("llama3-8b", "h100x16"), fixed=("offload=on",))
    assert all(one.layout.offload for one in fixed.layouts)


def test_a_batch_that_no_replica_count_divides_names_gpus_that_work() -> None:
    with pytest.raises(InputError, match="no layout of `llama3-8b` divides") as error:
        search.plan(setting_of("llama3-8b", "h100x37", batch=64))
    assert "nearest number of GPUs that works is 40" in error.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", "SYSTEMxGPUS"),
        ("h9000x8", "in the catalogue"),
        ("h100x0", "1 to 1,048,576 GPUs"),
        ("h100x99999999999", "but `h100x99999999999` has"),
    ],
)
def test_an_unknown_cluster_is_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        cluster(name)
    assert error.value.hint


def test_a_short_toml_is_a_cluster_with_measured_ceilings(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(
        'gpu = "h100"\nnum_gpus = 64\nnic_gbit_per_s = 1600\noversubscription = 2.0\n[matmul_tflops]\nbf16 = 700\n'
    )
    found, shares = cluster(str(path))
    assert (found.num_gpus, found.nic_bytes_per_s, found.oversubscription) == (64, 25e9, 2.0)
    assert shares["bf16"] == pytest.approx(700 / 989.5)
    assert found.origin == "measured"


GOOD = 'gpu = "h100"\nnum_gpus = 8\n'


@pytest.mark.parametrize(
    "text",
    [
        "gpu = 3",
        'gpu = "h100"',
        "gpu =",
        GOOD + "colour = 1",
        GOOD + "nic_gbit_per_s = 0",
        GOOD + 'network = "token ring"',
        GOOD + "oversubscription = 0.5",
        GOOD + "memory_gib = -1",
        GOOD + "pod_nodes = 0",
    ],
)
def test_a_damaged_toml_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"`.*ours\.toml`") as caught:
        cluster(str(path))
    assert "\n" not in str(caught.value) and caught.value.hint


def test_every_system_of_the_catalogue_plans() -> None:
    from flatout.catalog import all_systems

    for alias in all_systems():
        assert np.isfinite(search.plan(setting_of("gpt3-125m", f"{alias}x8", precision="fp16")).layouts[0].step_time_s)


@pytest.mark.parametrize(
    "damage", [{"num_experts": 1 << 31}, {"num_heads": 1 << 63}, {"hidden": 1 << 40}, {"num_layers": 1 << 40}]
)
def test_a_model_of_impossible_size_is_refused_within_seconds(damage: dict[str, int]) -> None:
    setting = setting_of("qwen3-30b-a3b", "h100x16")
    workload = msgspec.structs.replace(setting.spec.workload, **damage)
    began_s = process_time()
    with pytest.raises(InputError) as caught:
        search.plan(replace(setting, spec=replace(setting.spec, workload=workload)))
    assert process_time() - began_s < 5.0
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hidden_size", "qk_rope_head_dim", "n_routed_experts"])
@pytest.mark.parametrize(
    "value", [(1 << 40) + 1, 10**400, 1e308, float(1 << 41)], ids=["int", "long", "1e308", "float"]
)
def test_a_number_that_no_model_has_is_refused(tmp_path: Path, name: str, value: float) -> None:
    config = json.loads((OWN / "plan" / "moe.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {name: 1 << 40}))
    from_config(path)
    path.write_text(json.dumps(config | {name: value}))
    with pytest.raises(InputError) as caught:
        from_config(path)
    message = str(caught.value)
    assert name in message and "\n" not in message and len(message) < 1200


def test_the_list_shows_different_degrees(planned: Plan) -> None:
    degrees = [(one.layout.tp, one.layout.pp, one.layout.ep) for one in planned.layouts]
    assert len(set(degrees)) == len(degrees) == 10


def test_with_few_degrees_left_the_list_is_filled_with_variants() -> None:
    fixed = search.plan(setting_of("llama3-8b", "h100x16"), fixed=("tp=2", "pp=2"), num_layouts=5)
    assert len({layout_text(one.layout) for one in fixed.layouts}) == 5
    seconds = [one.step_time_s for one in fixed.layouts]
    assert seconds == sorted(seconds)


def test_a_higher_risk_offers_more_and_a_lower_one_fewer_layouts() -> None:
    context = setting_of("llama3-70b", "h100x32")
    plans = [search.plan(replace(context, risk=risk)) for risk in (0.01, 0.10, 0.50)]
    fitting = [one.num_fitting for one in plans]
    assert fitting == sorted(set(fitting))
    assert plans[0].layouts[0].step_time_s >= plans[1].layouts[0].step_time_s >= plans[2].layouts[0].step_time_s
    for one in plans:
        assert all(layout.out_of_memory_probability < one.risk for layout in one.layouts)


@pytest.mark.parametrize("file", ["cal.csv", "calm.csv"])
def test_a_measured_layout_is_offered(file: str) -> None:
    """NVIDIA's 70 B layout on 64 H100: without the measurement another of the same degrees is listed."""
    context = setting_of("llama3-70b", "h100x64", batch=128, seq=8192)
    corrected = calibrated(context, DATA / "plan_clusters" / file, (), print)
    found = [one for one in search.plan(corrected).layouts if (one.layout.tp, one.layout.pp) == (4, 4)]
    layout = found[0].layout
    assert (layout.cp, layout.vpp, layout.micro_batch, layout.dp) == (2, 5, 1, 2)
    assert found[0].out_of_memory_probability <= 0.01
    assert found[0].step_time_s == pytest.approx(14.61, rel=0.03)


@pytest.mark.parametrize(("probability", "hint"), [(0.94, "--risk 95 plans nonetheless"), (0.96, None)])
def test_a_refusal_says_which_risk_would_plan_unless_it_is_hopeless(probability: float, hint: str | None) -> None:
    context = setting_of("llama3-8b", "h100x1")
    error = too_large(context, np.array([90e9, 80e9]), np.array([0.99, probability]), ())
    assert f"{probability * 100:.0f} %" in str(error) and "74.5 GiB of the usable 77.6 GiB" in str(error)
    assert (hint in error.hint) if hint else ("--risk" not in error.hint)


@pytest.mark.parametrize(("seconds", "is_listed"), [(1.049, True), (1.051, False)])
def test_a_measured_layout_takes_the_place_of_one_that_is_hardly_faster(seconds: float, is_listed: bool) -> None:
    columns = {"tp": np.array([1.0, 1.0, 2.0]), "pp": np.ones(3), "ep": np.ones(3)}
    order, times = np.array([0, 1, 2]), np.array([1.0, seconds, 1.2])
    rows = search._with_measured(columns, np.array([0, 2]), order, times, np.array([1]))
    assert rows.tolist() == ([1, 2] if is_listed else [0, 2])
    # A measured layout that is not safe is not in the order, and not listed.
    assert search._with_measured(columns, np.array([0, 2]), np.array([0, 2]), times, np.array([1])).tolist() == [0, 2]


def test_expert_tensor_parallelism_is_planned_if_it_is_fixed() -> None:
    context = setting_of("mixtral-8x7b", "h100x16")
    assert all(one.layout.etp == 1 for one in search.plan(context).layouts)
    split = replace(context, spec=replace(context.spec, splits_experts=True))
    planned = search.plan(split, fixed=("etp=2", "tp=2"))
    assert all(one.layout.etp == 2 and one.layout.ep <= 8 for one in planned.layouts)
