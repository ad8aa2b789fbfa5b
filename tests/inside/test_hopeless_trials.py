"""A trial of hopelessly slow steps is abandoned in its warm-up, unless torch compiles in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.identity import Identity
from flatout.inside.phases import phases as module
from flatout.inside.phases.phases import Phases
from flatout.inside.recording.step_detector import StepSource
from flatout.inside.settings import RecorderSettings, StopRule


class File:
    """In place of the step file: keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))


class StoppedError(Exception):
    """In place of the end of the process."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, int]]:
    """Return a function that runs steps of two seconds until the trial stops: after which, why, and counted from."""

    def end(*_: object) -> None:
        raise StoppedError

    monkeypatch.setattr(module, "end_now", end)
    monkeypatch.setattr(module, "check_data", lambda *_: None)

    def run_steps(compiled_s: Callable[[int], float | None], *, limit_s: float = 0.5) -> tuple[int, str, int]:
        rule = StopRule(min_steps=30, max_steps=30, abandon_step_s=limit_s)
        settings = RecorderSettings(recording=tmp_path, is_light=True, has_facts=False, stop_rule=rule)
        settings.state.mkdir(exist_ok=True)
        identity = Identity(rank=0, world_size=1, local_rank=None, backend=None, num_nodes=None)
        file = File()
        phases = Phases(settings, identity, file)  # type: ignore[arg-type]
        step = 0
        monkeypatch.setattr(module, "compilation_s", lambda: compiled_s(step))
        try:
            for step in range(60):
                phases.add(step, 20.0 if step == 0 else 2.0 + 0.01 * (step % 3), "")
                phases.advance(step, StepSource.OPTIMIZER, is_training=True)
        except StoppedError:
            pass
        events = dict(file.events)
        return events["stop"]["after_step"], events["stop"]["reason"], events["plan"]["settled"]

    return run_steps


def test_a_hopeless_trial_ends_after_four_steps_which_count(run: Callable[..., tuple[int, str, int]]) -> None:
    assert run(lambda step: None) == (4, "abandoned", 1)
    assert run(lambda step: 17.0) == (4, "abandoned", 1)  # torch compiled in the first step, and then no more


def test_steps_in_which_torch_compiles_do_not_make_a_trial_hopeless(run: Callable[..., tuple[int, str, int]]) -> None:
    """It compiles in the first four steps: the usual warm-up is over after four more, and the four after it count."""
    assert run(lambda step: 10.0 * min(step, 3)) == (8, "abandoned", 5)


def test_a_trial_that_is_slower_but_not_hopeless_has_a_warm_up(
    run: Callable[..., tuple[int, str, int]],
) -> None:
    assert run(lambda step: None, limit_s=0.68) == (8, "abandoned", 5)
    assert run(lambda step: None, limit_s=2.5) == (34, "max", 5)
