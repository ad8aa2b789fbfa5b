"""A small training learns as much with each hook as without, on two gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.inside.patches.runs import run

pytestmark = pytest.mark.usefixtures("warm")

STEPS = 96


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory, warm: None) -> dict[str, float]:
    """Return the error of each way on unseen inputs, relative to saying the mean."""
    job = Path(__file__).with_name("learning.py")
    done = run(tmp_path_factory.mktemp("learning") / "recording", STEPS, 1, job=job, ranks=2)
    assert done.code == 0, done.errors
    return {way: values[0] for way, values in json.loads(done.said("losses")).items()}


def test_hooks_on_gradients_learn_as_well_as_plain_exchanges(losses: dict[str, float]) -> None:
    assert losses["plain"] < losses["untrained"] / 3
    for way in ("bf16", "fp16", "int8"):
        assert losses[way] == pytest.approx(losses["plain"], rel=0.02), way
    for way in ("powersgd-2", "topk-10%", "topk-1%+momentum", "topk-10%+momentum", "average-8"):
        assert losses[way] < 1.2 * losses["plain"], way


def test_diloco_learns_more_slowly_at_first(losses: dict[str, float]) -> None:
    """With so few outer steps it is behind, which the page on compression says."""
    assert losses["plain"] < losses["diloco-8"] < losses["untrained"] * 0.7
