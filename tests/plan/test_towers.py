"""The time and the activations of a vision tower, for the images of a sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.model_counts import configs
from tests.plan.test_model import machine_of

from flatout.errors import UsageError
from flatout.plan.constants import Constants
from flatout.plan.details import details
from flatout.plan.huggingface import from_values
from flatout.plan.inputs import layout_columns, software_columns, stacked, workload_columns
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.search import plan
from flatout.plan.step_time import step_time
from flatout.plan_pipeline import PlanRequest, search_context
from flatout.records.plan import Layout, Software, Training

GEMMA = from_values(Path("config.json"), configs()["gemma-3-27b"])
LAYERS, PATCHES, WIDTH, INNER = 27, (896 // 14) ** 2, 1152, 4304  # SigLIP's, in Gemma 3's config
MULTIPLY_ADDS = (
    LAYERS * PATCHES * (4 * WIDTH**2 + 2 * WIDTH * INNER)
    + LAYERS * 2 * PATCHES**2 * WIDTH
    + PATCHES * 3 * 14**2 * WIDTH
)


def predicted(images: int, training: Training | None = None, **layout: Any) -> tuple[float, float]:
    """Return the seconds of a step and the bytes of activations."""
    machine = machine_of("h100x8", "bf16")
    columns = workload_columns(GEMMA, 4096, training=training or Training(), images=images)
    chosen = Layout(**{"dp": 8, "zero": 3, "micro_batch": 2, "num_micro_batches": 4, **layout})
    inputs = stacked([{**columns, **machine, **software_columns(Software()), **layout_columns(chosen)}])
    held = memory(inputs, MemoryConstants(activations=1.0)).parts["activations"]
    return float(step_time(inputs, Constants(jitter=1e-9, overlap=1.0)).total_s[0]), float(np.ravel(held)[0])


@pytest.mark.parametrize(
    ("training", "layout", "passes"),
    [
        (Training(), {}, 1 + 2 * Constants().backward),
        (Training(), {"recompute": "full"}, 2 + 2 * Constants().backward),
        (Training(frozen=("vision",)), {}, 1.0),
    ],
    ids=["trained", "recomputed", "frozen"],
)
def test_an_image_takes_the_tower_s_operations(training: Training, layout: dict[str, str], passes: float) -> None:
    rate = 989e12 * 0.803 * Constants().matmul * 0.6  # an H100's measured share, and a tower's of that
    seconds_of_image = 2.0 * MULTIPLY_ADDS * passes / rate
    sequences = 2 * 4
    difference = predicted(3, training, **layout)[0] - predicted(0, training, **layout)[0]
    assert difference == pytest.approx(3 * sequences * seconds_of_image, rel=0.01)


def test_a_trained_tower_keeps_activations_and_a_frozen_one_none() -> None:
    elements = 2 * LAYERS * PATCHES * WIDTH  # of two sequences with an image each
    assert predicted(1)[1] - predicted(0)[1] == pytest.approx(30 * elements)
    assert predicted(1, recompute="full")[1] - predicted(0, recompute="full")[1] == pytest.approx(2 * elements)
    frozen = Training(frozen=("vision",))
    assert predicted(1, frozen)[1] == predicted(0, frozen)[1]


def test_the_first_stage_has_the_tower(tmp_path: Path) -> None:
    """The drawn pipeline, whose first stage has the images, takes nearly as long as the predicted parts.

    If the first stage is the slowest, its first forwards hide a little of the others, which the sum does not count.
    """
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs()["gemma-3-27b"]))
    request = PlanRequest(model=str(path), cluster="h100x16", global_batch=64, images=4)
    context = search_context(request, lambda message: pytest.fail(str(message)))
    result = plan(context, fixed=("pp=4", "vpp=1", "schedule=1f1b"), num_layouts=1)
    parts = result.layouts[0].parts_s
    drawn = details(context, result).pipeline
    inside = ("compute", "tensor_parallel", "context_parallel", "expert_parallel", "bubble", "imbalance")
    assert max(stage[-1].end_s for stage in drawn) == pytest.approx(sum(parts[name] for name in inside), rel=0.03)
    assert parts["imbalance"] > 0.1 * parts["compute"]


def test_images_need_a_tower_and_a_plan_without_images_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--images .* `llama3-8b` has none"):
        search_context(PlanRequest(model="llama3-8b", cluster="h100x8", images=1), print)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs()["gemma-3-27b"]))
    notes: list[object] = []
    search_context(PlanRequest(model=str(path), cluster="h100x8"), notes.append)
    assert len(notes) == 1 and "--images N" in str(notes[0])
