"""Trials must begin in the state in which the first one began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.change.jobs import facts

from flatout.change.catalogue import all_changes
from flatout.inside.checks.gradients import GradientRecorder
from flatout.records.change import Argument, Change, ChangeSet, Knob
from flatout.records.trial import StartState
from flatout.trial.gradients import read_start
from flatout.trial.start import other_start

FRESH = (StartState(num_steps=0, has_state=False, weights="a"),)
OWN = Change(
    name="hidden=8",
    knob=Knob(name="hidden", family="arguments", summary="", safety="exact", doc="", source=""),
    argument=Argument(words=(("--hidden", "8"),)),
)
NONE = ChangeSet()


def state(num_steps: int = 0, *, has_state: bool = False, weights: str | None = "a") -> tuple[StartState, ...]:
    return (StartState(num_steps=num_steps, has_state=has_state, weights=weights),)


@pytest.mark.parametrize(
    ("start", "baselines", "words"),
    [
        (state(), [FRESH], None),
        (state(40, has_state=True, weights="b"), [FRESH], "began at optimizer step 40, and the first trial at step 0"),
        (state(), [state(40, has_state=True)], "began at optimizer step 0, and the first trial at step 40"),
        (state(has_state=True), [FRESH], "had a state"),
        (state(), [state(has_state=True)], "had no state"),
        # The weights of a script without a seed differ each time; one trial cannot show whether it has one.
        (state(weights="b"), [FRESH], None),
        (state(weights="b"), [FRESH, FRESH], "began with different weights"),
        (state(weights="c"), [FRESH, state(weights="b")], None),
        (state(weights=None), [FRESH, FRESH], None),
        (state(weights="b"), [state(weights=None), state(weights=None)], None),
        (FRESH, [], None),
        ((), [FRESH], None),
        # The file of the first trial's rank is missing: the next one stands for it.
        (state(40, has_state=True), [(), FRESH], "began at optimizer step 40"),
    ],
)
def test_a_trial_that_begins_in_another_state_is_void(
    start: tuple[StartState, ...], baselines: list[tuple[StartState, ...]], words: str | None
) -> None:
    problem = other_start(start, baselines, NONE)
    if words is None:
        assert problem is None
    else:
        assert problem is not None
        assert words in problem


def test_an_argument_of_the_user_may_change_the_weights_but_not_the_step() -> None:
    changes = ChangeSet(changes=(OWN,))
    assert other_start(state(weights="b"), [FRESH, FRESH], changes) is None
    assert other_start(state(3), [FRESH, FRESH], changes) is not None
    ours = ChangeSet(changes=(next(iter(all_changes(facts()))),))
    assert other_start(state(weights="b"), [FRESH, FRESH], ours) is not None


def started(folder: Path, kind: Any = torch.optim.AdamW, *, seed: int = 0, resumed_steps: int = 0) -> StartState:
    """The state that a rank recorded of a small training, which may have resumed."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.Linear(300, 2))
    optimizer = kind(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()

    for _ in range(resumed_steps):
        step()
        optimizer.step()
    recorder = GradientRecorder(None)
    for _ in range(2):
        step()
        recorder.before_step(optimizer, (optimizer,), {})
        optimizer.step()
    folder.mkdir(exist_ok=True)
    recorder.write(folder, 0)
    (start,) = read_start(folder, 1)
    return start


def test_the_recorded_state_is_that_before_the_first_step(tmp_path: Path) -> None:
    fresh = started(tmp_path)
    assert (fresh.num_steps, fresh.has_state) == (0, False)
    assert started(tmp_path) == fresh
    assert started(tmp_path, seed=1).weights != fresh.weights


def test_a_resumed_training_shows_in_the_optimizer_or_in_the_weights(tmp_path: Path) -> None:
    fresh, resumed = started(tmp_path), started(tmp_path, resumed_steps=3)
    assert (resumed.num_steps, resumed.has_state) == (3, True)
    assert other_start((resumed,), [(fresh,)], NONE) is not None

    def momentum(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(*args, momentum=0.9, **kwargs)

    assert started(tmp_path, momentum, resumed_steps=3).has_state
    assert not started(tmp_path, momentum).has_state
    plain, later = started(tmp_path, torch.optim.SGD), started(tmp_path, torch.optim.SGD, resumed_steps=1)
    assert not later.has_state
    assert other_start((later,), [(plain,), (plain,)], NONE) is not None


def test_the_memory_format_does_not_change_the_digest(tmp_path: Path) -> None:
    def digest(memory_format: torch.memory_format) -> str | None:
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=memory_format)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 3, 8, 8)).sum().backward()
        recorder = GradientRecorder(None)
        recorder.before_step(optimizer, (optimizer,), {})
        recorder.write(tmp_path, 0)
        return read_start(tmp_path, 1)[0].weights

    assert digest(torch.contiguous_format) == digest(torch.channels_last) is not None


def test_a_rank_without_a_file_leaves_the_start_unknown(tmp_path: Path) -> None:
    started(tmp_path)
    assert read_start(tmp_path, 2) == ()
