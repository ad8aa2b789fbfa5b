"""The second trace window: when it is planned, that all ranks follow the same plan, and what is not traced."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.identity import Identity
from flatout.inside.phases import stall_window
from flatout.inside.phases.stall_window import StallWindow
from flatout.inside.phases.trace_window import WindowState
from flatout.inside.protocol import StepFileEvent, StepKind
from flatout.inside.settings import RecorderSettings

PERIOD = 40


class Window:
    """A trace window without a profiler."""

    def __init__(self, path: Path, num_steps: int, num_operators: int | None) -> None:
        del path, num_operators
        self.state, self.problem = WindowState.IDLE, None
        self.steps: list[int] = []
        self._num_steps, self._step = num_steps, 0

    def prepare(self) -> None:
        self.state = WindowState.PREPARED

    def start(self, step: int) -> None:
        self.state, self._step = WindowState.TRACING, step

    def next_step(self) -> bool:
        self.steps.append(self._step)
        self._step += 1
        return len(self.steps) < self._num_steps

    def stop(self) -> None:
        self.state = WindowState.DONE


class File:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))


class Rank:
    """A rank whose steps of 10 ms stall in every 40th step."""

    def __init__(
        self, folder: Path, rank: int, world_size: int = 2, *, num_nodes: int = 1, stall_s: float = 0.5, **settings: Any
    ) -> None:
        (folder / ".state").mkdir(exist_ok=True)
        identity = Identity(rank=rank, world_size=world_size, local_rank=None, backend=None, num_nodes=num_nodes)
        self.file = File()
        self.window = StallWindow(
            RecorderSettings(recording=folder, **settings),
            identity,
            self.file,  # type: ignore[arg-type]
            0,
        )
        self.kinds: dict[int, str] = {}
        self._stall_s = stall_s

    def end(self, step: int, *, num_operators: int | None = 100, stops_before: int | None = None) -> None:
        """End step number `step`, and start the next one."""
        if not self.kinds.get(step):
            self.window.add(step, [0.010 + (self._stall_s if step and step % PERIOD == 0 else 0.0)])
        self.kinds[step + 1] = self.window.advance(step + 1, num_operators, stops_before=stops_before)

    def traced(self) -> list[int]:
        return [step for step, kind in self.kinds.items() if kind == StepKind.TRACED]


@pytest.fixture(autouse=True)
def no_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_window, "TraceWindow", Window)
    clock = iter(range(0, 10**15, 10_000_000))  # each look at the clock is 10 ms later
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))


def test_a_rank_alone_traces_the_next_stall(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, world_size=1)
    for step in range(300):
        rank.end(step)
    assert rank.traced() == [159, 160, 161]
    assert rank.kinds[158] == StepKind.PREPARE
    assert [rank.kinds[step] for step in (162, 163, 164)] == [StepKind.RECOVERY, StepKind.RECOVERY, ""]
    ((name, event),) = rank.file.events
    assert name == StepFileEvent.STALL_WINDOW
    assert event == {"steps": [159, 160, 161], "due": 160, "period": 40, "problem": None}


@pytest.mark.parametrize(("num_nodes", "due"), [(1, 280), (2, 1360)])
def test_all_ranks_trace_the_same_steps_far_enough_ahead(tmp_path: Path, num_nodes: int, due: int) -> None:
    """The period is known after step 120; 150 steps of 10 ms are 1.5 s, and 1,200 steps are 12 s."""
    ranks = [Rank(tmp_path, rank, 3, num_nodes=num_nodes) for rank in range(3)]
    for step in range(1500):
        for rank in ranks:
            rank.end(step)
    for rank in ranks:
        assert rank.traced() == [due - 1, due, due + 1]


def test_a_rank_that_reads_the_plan_too_late_traces_nothing(tmp_path: Path) -> None:
    leader, late = Rank(tmp_path, 0), Rank(tmp_path, 1)
    for step in range(300):
        leader.end(step)
    late.window.add(299, [0.010])
    for step in range(300, 400):
        late.end(step)
    assert leader.traced() and not late.traced()
    assert late.window.is_over and not late.window.is_exact


def test_steps_are_reported_singly_only_near_the_window(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0)
    exact = []
    for step in range(400):
        rank.end(step)
        exact.append(rank.window.is_exact)
    first, last = exact.index(True), len(exact) - exact[::-1].index(True)
    assert (first, last) == (277 - 100, 282)  # a second before the steps 279 to 281, and the recovery after them


@pytest.mark.parametrize(("stops_before", "is_traced"), [(162, False), (163, True)])
def test_a_job_that_is_stopped_first_has_no_window(tmp_path: Path, stops_before: int, is_traced: bool) -> None:
    rank = Rank(tmp_path, 0, world_size=1)
    for step in range(161):
        rank.end(step, stops_before=stops_before)
    assert bool(rank.traced()) is is_traced


@pytest.mark.parametrize(
    ("stall_s", "num_operators", "is_traced"),
    [(19.9, 10, True), (20.1, 10, False), (0.5, 6000, True), (0.5, 6500, False)],
)
def test_stalls_that_are_long_or_have_many_operators_are_not_traced(
    tmp_path: Path, stall_s: float, num_operators: int, is_traced: bool
) -> None:
    """At 6,289 operators per step of 10 ms, 0.53 s have 333,333 operators, whose trace has 2 million events."""
    rank = Rank(tmp_path, 0, world_size=1, stall_s=stall_s)
    for step in range(200):
        rank.end(step, num_operators=num_operators)
    assert bool(rank.traced()) is is_traced


@pytest.mark.parametrize("settings", [{"is_light": True}, {"stop_after": 30}, {"is_light": True, "stop_after": 30}])
def test_light_recordings_and_trials_have_no_second_window(tmp_path: Path, settings: dict[str, Any]) -> None:
    rank = Rank(tmp_path, 0, world_size=1, **settings)
    for step in range(300):
        rank.end(step)
    assert not rank.traced() and not rank.file.events


def test_a_job_that_ends_before_its_window_leaves_no_problem(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, world_size=1)
    for step in range(130):
        rank.end(step)
    rank.window.finish()
    assert not rank.file.events


def test_a_job_that_ends_in_its_window_keeps_what_was_traced(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, world_size=1)
    for step in range(160):
        rank.end(step)
    rank.window.finish()
    ((_, event),) = rank.file.events
    assert event["steps"] == [159]
