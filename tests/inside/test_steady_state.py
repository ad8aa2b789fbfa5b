"""Plain steps written together are, to the last character, what they are when taken event by event."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.inside.recording.recorder import StepRecorder
from flatout.inside.recording.spells import CHECKPOINT
from flatout.inside.settings import RecorderSettings

OPTIMIZER = 77
SHAPES = st.sampled_from([torch.Size([8, 16]), torch.Size([4, 16]), torch.Size([8, 3, 4, 4]), torch.Size([])])
DTYPES = st.sampled_from([torch.int64, torch.float32])


class File:
    def __init__(self) -> None:
        self.written: list[str] = []

    def rows(self, rows: list[tuple[Any, ...]]) -> None:
        self.written += [json.dumps(row, separators=(",", ":")) for row in rows]

    def lines(self, rows: list[str]) -> None:
        self.written += rows

    def flush(self, now: int) -> None:
        pass


class Phases:
    is_over, is_exact, has_exported, is_decided = True, False, False, True

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def add(self, step: int, step_s: float, kind: str) -> None:
        assert not kind
        self.times.append((step, step_s))

    def add_steady(self, first: int, times_s: list[float]) -> None:
        self.times += enumerate(times_s, first)

    def advance_stall(self, step: int) -> str:
        return ""

    def advance(self, step: int, source: object, *, is_training: bool) -> str:
        return ""


def recorder(*, is_steady: bool) -> StepRecorder:
    made = StepRecorder(RecorderSettings(recording=Path("unused")), lambda: None)
    made._output.file, made._output.phases = File(), Phases()  # type: ignore[assignment]
    made._known = {OPTIMIZER}
    made._thread = threading.get_ident()
    made._detector.optimizer(OPTIMIZER)
    made._is_by_optimizer = True
    made._step, made._start_ns, made._kind = 100, 1000, ""
    made._is_steady = is_steady
    return made


def note(one: StepRecorder, events: list[tuple[Any, ...]]) -> None:
    now = 1000
    for kind, *what in events:
        now += 10
        if kind == "batch":
            one._note((StepRecorder._on_tensors, now, now + 5, *what))
        elif kind == "backward":
            (loss,) = what
            one._note((StepRecorder._on_backward, 0, None if loss is None else (torch.tensor(loss), 0)))
        elif kind == "optimizer":
            one._note((StepRecorder._on_optimizer, now, one._thread, OPTIMIZER, *what))
        else:
            one._note((StepRecorder._on_spell, CHECKPOINT, now - 4, now, False))


BATCH = st.tuples(st.just("batch"), SHAPES, DTYPES)
LOSS = st.none() | st.floats(width=32)
PLAIN_STEP = st.tuples(BATCH, st.tuples(st.just("backward"), LOSS), st.just(("optimizer", None, None)))
STEP = st.one_of(
    PLAIN_STEP,
    st.tuples(st.tuples(st.just("backward"), LOSS), st.just(("optimizer", None, None))),
    st.lists(
        st.one_of(
            BATCH,
            st.tuples(st.just("backward"), LOSS),
            st.just(("optimizer", True, None)),
            st.just(("checkpoint",)),
        ),
        max_size=3,
    ),
)


@given(st.lists(STEP, max_size=6))
def test_the_same_rows_as_event_by_event(steps: list[Any]) -> None:
    events = [event for step in steps for event in step]
    rows = []
    for is_steady in (True, False):
        one = recorder(is_steady=is_steady)
        note(one, events)
        one._process(10**9)
        note(one, [("batch", torch.Size([2]), torch.float32), ("backward", 1.0), ("optimizer", None, None)])
        one._process(10**9 + 1)
        times = one._output.phases.times  # type: ignore[union-attr]
        rows.append((one._output.file.written, times, one._step, one._start_ns, one._notes))  # type: ignore[union-attr]
    assert rows[0] == rows[1]


@given(st.lists(PLAIN_STEP, min_size=1, max_size=6))
def test_plain_steps_are_taken_together(steps: list[Any]) -> None:
    one = recorder(is_steady=True)
    note(one, [event for step in steps for event in step])
    assert one._take_steady_steps(10**9)
    assert len(one._output.file.written) == len(steps)  # type: ignore[union-attr]
