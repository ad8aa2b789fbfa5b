"""A step that calls the original step of the same optimizer, as that of Horovod's optimizer does, is one step."""

from __future__ import annotations

from typing import Any

import torch
from tests.jobs.horovod_like_job import distributed_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.inside.nested_steps import is_nested_step


def stepped(optimizer: Any, num_steps: int = 2) -> list[bool]:
    """Return what is said at each call of a hook."""
    said: list[bool] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: said.append(is_nested_step(optimizer)))
    for _ in range(num_steps):
        optimizer.step()
    handle.remove()
    return said


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def test_the_inner_of_two_steps_is_nested_and_the_outer_is_not() -> None:
    assert stepped(distributed_optimizer(sgd())) == [True, False] * 2
    scheduled = distributed_optimizer(sgd())
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    assert stepped(scheduled) == [True, False] * 2


def test_ordinary_steps_and_those_of_an_optimizer_within_another_are_not_nested() -> None:
    assert stepped(sgd()) == [False, False]

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return closure

    inner = sgd()
    assert stepped(Outer([torch.nn.Parameter(torch.ones(1))], lr=0.1), 1) == [False, False]
