"""What ranks wrote down of their gradients, put together by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from flatout.inside.protocol import File
from flatout.records.trial import GradientNorms
from flatout.trial.gradients import read_gradients


def gradients(folder: Path, *ranks: Sequence[Sequence[float]], sharded: Sequence[int] = ()) -> GradientNorms:
    """The gradients of one optimizer; `ranks`: for each rank and each step the norms of the parameters."""
    for rank, steps in enumerate(ranks):
        optimizer = {
            "num_parameters": len(steps[0]),
            "sharded": list(sharded),
            "steps": [list(step) for step in steps],
            "unclipped": [None] * len(steps),
        }
        (folder / File.GRADIENTS.of(rank)).write_text(json.dumps({"rank": rank, "optimizers": [optimizer]}))
    (norms,) = read_gradients(folder, len(ranks))
    return norms


def test_the_norm_of_a_step_is_that_of_all_parameters_and_of_all_parts(tmp_path: Path) -> None:
    """One parameter on each rank whole, of norm 3; another in two parts of norms 4 and 12."""
    norms = gradients(tmp_path, [[3.0, 4.0]], [[3.0, 12.0]], sharded=[1])
    assert norms.norms == pytest.approx([math.sqrt(9 + 16 + 144)])
    assert norms.rank_spread == 0.0, "parts of a parameter are not compared"


@pytest.mark.parametrize(("num_zero", "is_without"), [(1, False), (2, False), (3, True), (5, True)])
def test_a_parameter_is_without_a_gradient_if_it_has_none_in_most_steps(
    tmp_path: Path, num_zero: int, is_without: bool
) -> None:
    norms = gradients(tmp_path, [[1.0, 0.0 if step < num_zero else 1.0] for step in range(5)])
    assert norms.without == ((1,) if is_without else ())
    assert norms.absent == norms.faint == (1,)


@pytest.mark.parametrize(("norm", "is_faint"), [(5e-5, True), (2e-4, False)])
def test_a_gradient_below_a_ten_thousandth_of_all_is_faint_and_not_compared_between_ranks(
    tmp_path: Path, norm: float, is_faint: bool
) -> None:
    """As of a bias before a batch norm, where it is rounding alone, and other rounding on each rank."""
    norms = gradients(tmp_path, [[1.0, 0.5 * norm]], [[1.0, math.sqrt(1.75) * norm]])
    assert norms.faint == ((1,) if is_faint else ())
    assert norms.rank_spread == pytest.approx(0.0 if is_faint else 1 - 0.5 / math.sqrt(1.75))


@pytest.mark.parametrize(
    ("num_parameters", "sharded", "num_norms"), [(2, [], 1), (2, [], 3), (1, [1], 1), (1, [-1], 1), (0, [0], 0)]
)
def test_a_file_whose_numbers_do_not_agree_is_as_one_that_was_cut(
    tmp_path: Path, num_parameters: int, sharded: list[int], num_norms: int
) -> None:
    """The norms of a step are those of each parameter, and a place of a sharded one is among them."""
    gradients(tmp_path, [[1.0] * max(num_parameters, 1)] * 2)
    optimizer = {"num_parameters": num_parameters, "sharded": sharded, "unclipped": [None, None]}
    steps = [[1.0] * num_parameters, [1.0] * num_norms]
    content = {"rank": 1, "optimizers": [{**optimizer, "steps": steps}]}
    (tmp_path / File.GRADIENTS.of(1)).write_text(json.dumps(content))
    assert read_gradients(tmp_path, 2) == ()


def test_ranks_are_compared_where_there_are_two(tmp_path: Path) -> None:
    assert gradients(tmp_path, [[4.0]]).rank_spread is None
    assert gradients(tmp_path, [[4.0]], [[3.0]]).rank_spread == 0.25
