"""The memory of the largest step: worked out by hand, and against what profile runs of vLLM measured."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import flatout.catalog
from flatout.cli import parser
from flatout.errors import InputError
from flatout.plan.model_names import workload
from flatout.plan.serving.activations import LOGIT_BYTES, LargestStep, activation_bytes
from flatout.plan.serving.model import served_model
from flatout.plan.serving.step import MOST_REQUESTS
from flatout.plan_pipeline.serving import ServingRequest, planned_serving
from flatout.records.serving_plan import ServedLoad, ServingPlan

FILE = Path(flatout.catalog.__file__).with_name("serving_memory.toml")
SOURCES = tomllib.loads(FILE.read_text())["source"]
ROWS = [row for source in SOURCES for row in source["rows"]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_a_profile_run_is_predicted_within_three_percent(row: list[Any]) -> None:
    name, group, tokens, requests, measured_gib = row
    step = LargestStep(tokens=tokens, requests=requests)
    predicted = activation_bytes(served_model(workload(name)), group, 2.0, step)
    assert predicted / 2**30 == pytest.approx(measured_gib, rel=0.03)


def test_each_source_has_an_address_and_a_day() -> None:
    for source in SOURCES:
        assert source["url"].startswith("https://github.com/")
        assert date(2026, 1, 1) < date.fromisoformat(source["read"])


@pytest.mark.parametrize(
    ("model", "group", "tokens", "requests", "expected"),
    [
        # Hidden state, residual and output of 4,096 each, and 3 x 14,336 inner values, of 2 bytes
        ("llama3-8b", 1, 100_000, 1, 100_000 * 2 * (3 * 4096 + 3 * 14_336)),
        # The inner values are shared by the group.
        ("llama3-8b", 8, 100_000, 1, 100_000 * 2 * (3 * 4096 + 3 * 14_336 / 8)),
        # Few tokens: the logits of all requests, beside the hidden states
        ("llama3-8b", 1, 1, 1000, 1000 * 128_256 * LOGIT_BYTES + 2 * 4096),
        # Eight experts of 3 x 1,536 inner values, each with its own output
        ("qwen3-235b-a22b", 2, 100_000, 1, 100_000 * 2 * (3 * 4096 + 8 * 3 * 1536 / 2 + 8 * 4096)),
        # DeepSeek's dense layers are narrower than those of eight experts and a shared one.
        ("deepseek-v3", 1, 100_000, 1, 100_000 * 2 * (3 * 7168 + 9 * 3 * 2048 + 8 * 7168)),
    ],
)
def test_the_largest_step_worked_out_by_hand(
    model: str, group: int, tokens: int, requests: int, expected: float
) -> None:
    step = LargestStep(tokens=tokens, requests=requests)
    assert activation_bytes(served_model(workload(model)), group, 2.0, step) == pytest.approx(expected, rel=1e-9)


def planned(weights: str = "fp8", **more: Any) -> ServingPlan:
    load = ServedLoad(input_tokens=1000, output_tokens=100, rate_per_s=0.1)
    model = more.pop("model", "llama3.1-405b")
    request = ServingRequest(model=model, gpu="h100", weights=weights, cache=None, load=load, **more)
    return planned_serving(request, print)


def cached_tokens(plan: ServingPlan) -> float:
    best = plan.options[0]
    per_token = best.cache_bytes_per_request / 1100
    return (plan.usable_bytes - best.weight_bytes) / per_token


def test_a_long_step_takes_the_place_of_caches() -> None:
    """Llama 3.1 405B on eight H100: each token more in a step takes 138,240 bytes, and in the cache 64,512."""
    short, long = (planned(step_tokens=tokens) for tokens in (20_000, 60_000))
    assert short.options[0].tensor_parallel == 8
    assert cached_tokens(short) - cached_tokens(long) == pytest.approx(40_000 * 138_240 / 64_512)
    assert (long.options[0].activation_bytes, long.step_tokens) == (60_000 * 138_240, 60_000)
    with pytest.raises(InputError, match="must fit on GPUs that share one copy") as refused:
        planned(step_tokens=200_000)
    assert refused.value.hint.endswith("or a smaller --max-batched-tokens")


def test_attention_in_16_bits_is_counted_with_fp8_in_the_feed_forward_alone() -> None:
    """As in Meta's checkpoint of Llama 3.1 405B, of which vLLM loaded 57.75 GiB on each of eight GPUs (vllm#6746).

    It also keeps its first and last layers in 16 bits, which are 1.1 % of the weights.
    """
    plan = planned("fp8-ffn")
    assert plan.options[0].weight_bytes / 2**30 == pytest.approx(57.75, rel=0.03)
    attention = 126 * (2 * 16_384**2 + 2 * 16_384 * 1024)
    difference = plan.options[0].weight_bytes - planned("fp8").options[0].weight_bytes
    assert difference == pytest.approx(attention / 8)
    assert plan.options[0].itl_s > planned("fp8").options[0].itl_s


def test_the_requests_that_an_engine_holds_bound_the_batch_and_take_memory() -> None:
    usual, few, many = (planned(model="llama3.1-8b", most_held=number) for number in (None, 4, 1024))
    assert (usual.most_held, few.most_held) == (MOST_REQUESTS, 4)
    assert few.options[0].limited_by == "batch"
    assert few.options[0].rate_per_s < usual.options[0].rate_per_s
    assert many.options[0].activation_bytes - usual.options[0].activation_bytes == 768 * 128_256 * LOGIT_BYTES


def test_the_command_line_has_both_limits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "serve", "--model", "llama3.1-8b", "--gpu", "h100", "--rate", "1", "--json"]
    parser()([*words, "--max-batched-tokens", "40000", "--max-seqs", "16"], prog_name="flatout", standalone_mode=False)
    plan = json.loads(capsys.readouterr().out)
    assert (plan["step_tokens"], plan["most_held"]) == (40_000, 16)
    assert plan["options"][0]["activation_bytes"] == 40_000 * 110_592
