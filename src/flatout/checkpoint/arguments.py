"""Check the arguments of a `Checkpointer`, so that unsupported ones are reported before the first step."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flatout.checkpoint.gradients import mark_used_gradients
from flatout.checkpoint.loader_kinds import is_plain_loader
from flatout.checkpoint.loader_position import LoaderPosition
from flatout.checkpoint.loader_random import keep_worker_random
from flatout.checkpoint.problems import CheckpointError
from flatout.checkpoint.share import items_of
from flatout.checkpoint.state import TrainingState, check, collect
from flatout.inside.protocol import Variable


def check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise CheckpointError(f"`{name}` must be at least 1, but is {number}")


def training_of(
    model: Any, optimizer: Any, scheduler: Any, data: Any, state: Mapping[str, Any] | None
) -> TrainingState:
    """Return the checked objects of the training, so that unsupported ones are reported before the first step."""
    if isinstance(optimizer, Mapping):
        optimizers = dict(optimizer)
    else:
        optimizers = {"optimizer": optimizer} if optimizer else {}
    named = {"scheduler": scheduler, "data": LoaderPosition(data) if is_plain_loader(data) else data}
    stateful = {name: value for name, value in named.items() if value is not None} | dict(state or {})
    for name in [*optimizers, *(state or {})]:
        if (
            not name.isidentifier()
            or name in {"model", "random", "gradients", *named}
            or (name in optimizers and name in stateful)
        ):
            raise CheckpointError(
                f"`{name}` cannot be the name of an optimizer or a state here", hint="use another name"
            )
    training = TrainingState(model=model, optimizers=optimizers, stateful=stateful)
    check(training)
    if data is not None:
        keep_worker_random(data)
    items_of(collect(training))
    mark_used_gradients(optimizers.values())
    return training


def checked_step(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise CheckpointError(f"a step must be a non-negative integer, but got {step!r}")
    return number


def every_s_of_environment() -> float | None:
    with suppress(ValueError):
        every_s = float(os.environ.get(Variable.CHECKPOINT_EVERY_S, ""))
        return every_s if 0 < every_s < float("inf") else None
    return None
