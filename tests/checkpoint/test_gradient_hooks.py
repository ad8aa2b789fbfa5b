"""A training with compressed gradients resumes with what its hook kept: the same bits as without the interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.ranks import run

TOP_K = {"hook": "topk", "percent": 10}
HOOKS: dict[str, tuple[dict[str, Any], list[str], int]] = {
    "bf16": ({"hook": "bf16"}, [], 2),
    "int8": ({"hook": "int8"}, [], 3),
    "topk": (TOP_K, [], 3),
    "topk with momentum": (TOP_K | {"momentum": True}, ["--momentum"], 2),
    "powersgd": ({"hook": "powersgd", "rank": 1, "start": 3}, [], 2),
    "diloco": ({"every": 4, "outer": True}, ["--momentum"], 2),
}


def patch(parameters: dict[str, Any]) -> str:
    """Return the patch that the command line of the training takes."""
    name = "ddp_hook" if "hook" in parameters else "local_sgd"
    return json.dumps({"name": name, "parameters": parameters})


@pytest.mark.parametrize("name", HOOKS)
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    """DDP divides gradients otherwise in its first step, also in the first one after the resume."""
    hook, options, num_ranks = HOOKS[name]
    words = ["--patch", patch(hook), *options]
    whole = run(tmp_path / "whole", 12, *words, kind="ddp", num_ranks=num_ranks)
    assert whole.codes == [0] * num_ranks, whole.errors
    first = run(tmp_path / "parts", 7, *words, kind="ddp", num_ranks=num_ranks)
    second = run(tmp_path / "parts", 12, *words, kind="ddp", num_ranks=num_ranks)
    assert (second.codes, second.start) == ([0] * num_ranks, 6), second.errors
    assert first.losses | second.losses == whole.losses
    assert second.digest == whole.digest != first.digest


def test_what_a_hook_kept_is_left_by_a_training_without_it(tmp_path: Path) -> None:
    words = ["--patch", patch(TOP_K)]
    run(tmp_path / "parts", 7, *words, kind="ddp", num_ranks=2)
    without = run(tmp_path / "parts", 9, kind="ddp", num_ranks=2)
    assert (without.codes, without.start) == ([0, 0], 6), without.errors


def test_another_hook_begins_anew(tmp_path: Path) -> None:
    run(tmp_path / "parts", 7, "--patch", patch(TOP_K), kind="ddp", num_ranks=2)
    other = run(tmp_path / "parts", 9, "--patch", patch({"hook": "int8"}), kind="ddp", num_ranks=2)
    assert (other.codes, other.start) == ([0, 0], 6), other.errors


@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_a_third_rank_joins_without_the_errors_of_another(tmp_path: Path, name: str) -> None:
    words = ["--patch", patch(HOOKS[name][0])]
    run(tmp_path / "parts", 7, *words, kind="ddp", num_ranks=2)
    more = run(tmp_path / "parts", 9, *words, kind="ddp", num_ranks=3)
    assert (more.codes, more.start) == ([0, 0, 0], 6), more.errors
