"""A plan for one framework has the time and the memory of that framework, with the settings that are written for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plan.test_model import machine_of, one_case
from tests.plan.test_search import setting_of

from flatout.catalog import all_models
from flatout.catalog.targets import targets
from flatout.errors import InputError
from flatout.plan.constants import from_logs
from flatout.plan.layouts import all_layouts
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.search import plan
from flatout.plan.shipped import shipped
from flatout.plan.step_time import step_time
from flatout.plan_pipeline import PlanRequest, search_context
from flatout.records.plan import Layout, Software, Training


def software_for(target: str, training: Training | None = None) -> Software:
    request = PlanRequest(model="llama3-8b", cluster="h100x8", target=target, training=training or Training())
    return search_context(request, print).software


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("any", {"selects_modules": False, "selective_share": 0.0, "is_eager": False, "overlaps_tp": 0.0}),
        ("megatron", {"selects_modules": True, "keeps_low": True, "is_eager": False, "overlaps_tp": 0.0}),
        ("nemo", {"selects_modules": True, "keeps_low": True, "is_eager": False, "overlaps_tp": 1.0}),
        ("torchtitan", {"selects_modules": False, "selective_share": 0.5, "is_eager": True, "logits_bytes": 12.0}),
        ("deepspeed", {"gathers_per_layer": 12.0, "gather_copies": 2.0, "gathers_again": True, "is_eager": True}),
        ("fsdp2", {"is_eager": True, "gathers_per_layer": 1.0, "logits_bytes": 12.0}),
    ],
)
def test_a_target_is_planned_as_what_it_does_in_a_step(target: str, expected: dict[str, bool | float]) -> None:
    software = software_for(target)
    assert {name: getattr(software, name) for name in expected} == expected
    assert software.is_known


@pytest.mark.parametrize("target", [each.name for each in targets()])
def test_gradients_are_those_of_the_options_not_of_the_recipes(target: str) -> None:
    assert software_for(target).held_gradient_bytes == 4.0
    assert software_for(target, Training(gradients="bf16")).held_gradient_bytes == 2.0


def test_recomputed_modules_are_offered_where_the_framework_has_them() -> None:
    context = setting_of("deepseek-v3", "h100x512", 1024, 4096)
    fixed = ("pp=8", "ep=32", "tp=2", "recompute=selective")

    with_modules = replace(context, software=Software(selects_modules=True))
    assert plan(with_modules, fixed=fixed, num_layouts=1).layouts[0].layout.recompute == "selective"
    with pytest.raises(InputError, match=r"recompute=selective .* equals recompute=none") as caught:
        plan(replace(context, software=Software()), fixed=fixed, num_layouts=1)
    assert caught.value.hint is not None and "--for megatron" in caught.value.hint


def test_recomputed_modules_cost_time_and_save_memory() -> None:
    """Between no and full recomputation in both, for a model with experts and latent attention."""
    machine = machine_of("h100x512", "bf16")
    layout = {"tp": 2, "sequence_parallel": True, "pp": 8, "ep": 32, "dp": 32, "zero": 1, "num_micro_batches": 32}
    constants = from_logs(shipped().logs)
    seconds, held = [], []
    for recompute in ("none", "selective", "full"):
        inputs = one_case(
            all_models()["deepseek-v3"],
            machine,
            Layout(**layout, recompute=recompute),  # type: ignore[arg-type]
            4096,
            Software(selects_modules=True),
        )
        seconds.append(float(step_time(inputs, constants).total_s[0]))
        held.append(float(np.ravel(memory(inputs, MemoryConstants()).total)[0]))
    assert seconds[0] < seconds[1] < seconds[2]
    assert held[0] > held[1] > held[2]


def test_chunks_may_count_the_ends_of_the_model_as_layers() -> None:
    """NVIDIA's recipe of Qwen 3 235B: 94 layers on 8 stages with 4 chunks each; 94 + 2 = 8 * 4 * 3."""
    columns = all_layouts(setting_of("qwen3-235b-a22b", "h100x256", 2048, 4096).spec)
    chunks = set(columns["vpp"][columns["pp"] == 8].tolist())
    # 94 layers alone divide by none. 12 have a layer each, but the first and the last, as in NVIDIA's Llama 405B.
    assert chunks == {1.0, 2.0, 3.0, 4.0, 6.0, 12.0}
