"""A plan for serving: exact bytes of weights and caches, the engine in the long run, and the fewest GPUs."""

from __future__ import annotations

import json
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.errors import InputError, UsageError
from flatout.plan.clusters import cluster
from flatout.plan.model_names import workload
from flatout.plan.serving.constants import StepConstants, shipped_accuracy, shipped_constants
from flatout.plan.serving.fit import fitted, log_error
from flatout.plan.serving.model import served_model
from flatout.plan.serving.published import published_results
from flatout.plan.serving.steady import at_concurrency, at_rate
from flatout.plan.serving.step import Served, step_s
from flatout.plan_pipeline.serving import ServingRequest, planned_serving
from flatout.records.serving_plan import ServedLoad, ServingPlan

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "serving_plan.json"


def served(model: str = "llama3-8b", gpu: str = "h100", group: int = 1, **types: Any) -> Served:
    machine, shares = cluster(f"{gpu}x{group}")
    types = {"weights": "bf16", "cache": "bf16", **types}
    return Served(model=served_model(workload(model)), cluster=machine, matmul_share=shares, group=group, **types)


def plan(model: str = "llama3.1-70b", gpu: str = "h100", weights: str = "bf16", **load: Any) -> ServingPlan:
    values = {"input_tokens": 1024, "output_tokens": 256, "rate_per_s": 5.0, **load}
    request = ServingRequest(model=model, gpu=gpu, weights=weights, cache=None, load=ServedLoad(**values))
    return planned_serving(request, print)


@pytest.mark.parametrize(
    ("model", "group", "types", "tokens", "on_one_gpu"),
    [
        # 32 layers x keys and values of 8 heads of 128 x 2 bytes
        ("llama3-8b", 1, {}, 1, 32 * 2 * 8 * 128 * 2),
        ("llama3-8b", 1, {"cache": "fp8"}, 10, 10 * 32 * 2 * 8 * 128),
        # Eight key-value heads split over eight GPUs at most: with sixteen, each head is kept twice.
        ("llama3-8b", 8, {}, 1, 32 * 2 * 128 * 2),
        ("llama3-8b", 16, {}, 1, 32 * 2 * 128 * 2),
        # Latent attention keeps 512 + 64 elements a layer, on every GPU of the group.
        ("deepseek-v3", 1, {}, 1, 61 * 576 * 2),
        ("deepseek-v3", 8, {}, 1, 61 * 576 * 2),
        # With its own attention, a GPU keeps an eighth of the requests whole.
        ("deepseek-v3", 8, {"has_own_attention": True}, 1, 61 * 576 * 2 / 8),
    ],
)
def test_the_cache_of_a_request_is_exact(
    model: str, group: int, types: dict[str, Any], tokens: int, on_one_gpu: float
) -> None:
    assert served(model, group=group, **types).cache_bytes(tokens) == on_one_gpu


def test_a_window_bounds_what_its_layers_keep(tmp_path: Path) -> None:
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "head_dim": 64, "sliding_window": 128, "hidden_size": 2880}))
    model = served_model(workload(str(path)))
    per_token = 2 * 8 * 64
    assert model.cached_elements(100, 1) == 24 * per_token * 100
    assert model.cached_elements(10_000, 1) == 12 * per_token * 128 + 12 * per_token * 10_000


@pytest.mark.parametrize(
    ("weights", "per_weight"), [("bf16", 2.0), ("fp8", 1.0), ("int8", 1.0), ("int4", 0.51953125), ("fp4", 0.5625)]
)
def test_the_bytes_of_weights_are_those_of_the_type_and_16_bits_for_tables_and_norms(
    weights: str, per_weight: float
) -> None:
    in_layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    others = 2 * 128_256 * 4096 + (2 * 32 + 1) * 4096
    gpu = "b200" if weights == "fp4" else "h100"
    assert served(gpu=gpu, weights=weights).weight_bytes == pytest.approx(in_layers * per_weight + others * 2)
    assert served(gpu=gpu, weights=weights, group=4).weight_bytes * 4 == pytest.approx(
        in_layers * per_weight + others * 2
    )


@pytest.mark.parametrize(("weights", "tokens", "users"), [("bf16", 4096, 92), ("bf16", 8704, 43), ("fp8", 1152, 373)])
def test_as_many_requests_fit_as_were_published(weights: str, tokens: int, users: int) -> None:
    """silybench: the most users by the KV cache of Qwen3-8B on one H100."""
    assert served("qwen3-8b", weights=weights).most_concurrent(tokens) == pytest.approx(users, rel=0.05)


def test_a_step_reads_only_the_experts_that_a_token_chose() -> None:
    free = StepConstants(expert_layer_s=1e-12, layer_s=1e-12, step_s=1e-12, request_s=1e-12, memory=1.0)
    mixture = served("mixtral-8x7b", gpu="h200")
    one, many = (step_s(mixture, free, requests, 1) for requests in (1, 16))
    model = mixture.model
    read = model.dense_weights + model.expert_weights / 4 + model.head_weights
    assert one == pytest.approx(2 * read / mixture.cluster.memory_bytes_per_s, rel=1e-3)
    touched = 1 - 0.75**16
    assert many / one == pytest.approx(
        (model.dense_weights + model.expert_weights * touched + model.head_weights) / read, rel=0.01
    )


def test_requests_in_the_engine_are_their_rate_times_their_time() -> None:
    """Little's law, of the answers: requests at a time = rate x output tokens x time between tokens."""
    copy, constants = served(), shipped_constants()
    state = at_rate(copy, constants, 4.0, 1000, 200, most=512)
    assert state is not None
    assert state.rate_per_s == pytest.approx(4.0, rel=1e-6)
    assert state.concurrent == pytest.approx(4.0 * 200 * state.itl_s, rel=1e-6)
    assert at_rate(copy, constants, 1e4, 1000, 200, most=512) is None


def test_more_requests_at_a_time_are_answered_faster_and_wait_longer() -> None:
    states = [at_concurrency(served(), shipped_constants(), number, 1000, 200) for number in (1, 2, 8, 64, 256)]
    for fewer, more in pairwise(states):
        assert more.rate_per_s > fewer.rate_per_s
        assert more.itl_s > fewer.itl_s
        assert more.ttft_s > fewer.ttft_s


def test_the_fewest_gpus_answer_within_the_limits_and_one_copy_fewer_does_not() -> None:
    answer = plan(weights="fp8", rate_per_s=30.0, most_ttft_s=0.5, most_itl_s=0.03)
    assert [option.num_gpus for option in answer.options] == sorted(option.num_gpus for option in answer.options)
    for option in answer.options:
        assert option.ttft_s <= 0.5
        assert option.itl_s <= 0.03
        assert option.copies * option.rate_per_s >= 30.0
        assert (option.copies - 1) * option.rate_per_s < 30.0
        slow, fast = option.rate_interval_per_s
        assert slow < option.rate_per_s < fast
        low, high = option.num_gpus_interval
        assert low <= option.num_gpus
        assert high is None or high >= option.num_gpus
    assert plan(weights="fp8", rate_per_s=60.0).options[0].num_gpus >= plan(weights="fp8").options[0].num_gpus


def test_limits_decide_what_bounds_a_copy() -> None:
    small = {"model": "llama3-8b", "rate_per_s": 1.0}
    assert plan(**small, gpu="h200", input_tokens=64, output_tokens=64).options[0].limited_by == "batch"
    assert plan(**small, gpu="a100-40gb").options[0].limited_by == "cache"
    assert plan(**small, most_itl_s=0.012).options[0].limited_by == "itl"
    assert plan(**small, most_ttft_s=0.06, output_tokens=16).options[0].limited_by == "ttft"
    alone = plan(**small, most_itl_s=0.001)
    assert alone.options == ()
    assert {refused.why for refused in alone.refused} == {"itl"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "bert-large"}, InputError, "generates no text"),
        ({"model": "vit-l16"}, InputError, "generates no text"),
        ({"model": "llama3.1-405b", "gpu": "a100"}, InputError, "95 GiB on each of 8 A100 SXM 80GB"),
        ({"gpu": "a100", "weights": "fp8"}, InputError, "A100 SXM 80GB cannot multiply in fp8"),
        ({"gpu": "h101"}, InputError, "the GPU must be in the catalogue, but got `h101`"),
        ({"weights": "fp7"}, UsageError, "`--weights` must be one of"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(**arguments)


def test_a_recurrence_is_refused_since_its_state_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba2"}))
    with pytest.raises(InputError, match="has recurrent layers, whose state during generation is unknown"):
        plan(model=str(path))


def test_published_results_have_a_source_and_a_day_and_come_from_several_engines() -> None:
    results = published_results()
    assert len(results) >= 100
    assert len({result.source for result in results}) >= 8
    assert {result.engine for result in results} == {"vllm", "sglang", "tensorrt-llm"}
    assert all(result.concurrent >= 1 for result in results)
    text = (Path(__file__).parents[2] / "src/flatout/catalog/serving_results.toml").read_text()
    days = [line.split('"')[1] for line in text.splitlines() if line.startswith("read = ")]
    assert all(date.fromisoformat(day) >= date(2026, 11, 30) for day in days)


def test_results_of_a_source_are_predicted_by_constants_fitted_to_the_others() -> None:
    """silybench, held out here again: the kept table says what the fit gives, and the fit is as good as it says."""
    results = published_results()
    constants = fitted([result for result in results if result.source != "silybench"])
    own = [log_error(result, constants) for result in results if result.source == "silybench"]
    mean_error = sum(abs(relative_error(error)) for error in own) / len(own)
    kept = json.loads(KEPT.read_text())
    row = next(row for row in kept["sources"] if row["source"] == "silybench")
    assert mean_error == pytest.approx(row["mean_error"], abs=0.005)
    assert mean_error < 0.12


def test_what_flatout_ships_is_what_the_kept_table_says() -> None:
    kept = json.loads(KEPT.read_text())
    for accuracy in kept["accuracy"]:
        has_experts = accuracy["models"] == "experts"
        assert msgspec.to_builtins(shipped_accuracy(has_experts=has_experts)) == accuracy
    errors = [log_error(result, shipped_constants()) for result in published_results()]
    dense = [
        abs(relative_error(error))
        for error, result in zip(errors, published_results(), strict=True)
        if not result.served.model.expert_weights
    ]
    assert sum(dense) / len(dense) < 0.15


def relative_error(log_of_measured_by_predicted: float) -> float:
    return float(2.718281828459045**-log_of_measured_by_predicted - 1)
