"""The weights are disturbed by a rounding once, after the first update, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flatout.inside.other_rounding import round_otherwise
from flatout.inside.protocol import Variable


def trained(num_steps: int) -> list[torch.Tensor]:
    """The weights of a small model before the first step and after each, and a number drawn at the end."""
    torch.manual_seed(1)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    weights = [model.weight.detach().clone()]
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
        weights.append(model.weight.detach().clone())
    return [*weights, torch.rand(1)]


@pytest.fixture
def _is_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(Variable.OTHER_ROUNDING, "1")
    undo = round_otherwise()
    assert undo is not None
    yield
    undo()


def test_without_the_variable_there_is_no_hook() -> None:
    assert round_otherwise() is None


def test_the_weights_change_once_by_less_than_a_millionth_and_the_jobs_numbers_stay() -> None:
    plain = trained(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(Variable.OTHER_ROUNDING, "1")
        undo = round_otherwise()
        assert undo is not None
        changed = trained(2)
        undo()
    assert torch.equal(plain[0], changed[0]) and torch.equal(plain[-1], changed[-1])
    relative = ((changed[1] - plain[1]) / plain[1]).abs()
    assert 0 < relative.max() <= 1.1 * 2**-20 and (relative > 0).float().mean() > 0.5
    assert torch.equal(changed[1], changed[2])  # the learning rate is 0, so a second disturbance would show
    assert all(torch.equal(one, other) for one, other in zip(trained(2), plain, strict=True))  # the hook is removed


@pytest.mark.usefixtures("_is_on")
def test_numbers_of_half_the_size_change_by_a_digit_and_others_are_left() -> None:
    weights = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    empty = torch.nn.Parameter(torch.zeros(0))
    optimizer = torch.optim.SGD([weights, empty], lr=0.0)
    weights.grad = torch.zeros_like(weights)
    optimizer.step()
    assert 0 < (weights.detach().float() - 1).abs().max() <= 2**-7
