"""Read the blocks of a recording: the measured steps of each block that all ranks completed.

In: the events that each rank wrote at the end of a block, and its recorded steps. Out: `Block`s, in order. A block that
a rank did not complete, or for which the ranks differ, is not included. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import File, StepFileEvent
from flatout.records.blocks import Block
from flatout.records.recording import RankRecording, Recording, Steps

Floats = NDArray[np.float64]
_MARK = f'"event":"{StepFileEvent.BLOCK}"'.encode()
_RESTART_MARK = f'"event":"{StepFileEvent.RESTART}"'.encode()


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]  # as in other lines of a step file


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a complete block."""

    block: _Count
    arm: str
    is_switch: bool
    first: _Count
    first_measured: _Count
    end: _Count
    device_ns: tuple[_Count, ...] | None = None
    problem: str | None = None

    @property
    def place(self) -> tuple[str, int, int, int]:
        return self.arm, self.first, self.first_measured, self.end


def read_blocks(recording: Recording) -> tuple[Block, ...]:
    """Return the blocks that all ranks completed, with the mean of each measured step over the ranks."""
    folder = Path(recording.traces_path)
    by_rank = [_lines(folder / File.STEPS.of(rank.rank)) for rank in recording.ranks]
    if not by_rank or recording.missing_ranks:
        return ()
    numbers = sorted(set.intersection(*(set(lines) for lines in by_rank)))
    blocks = (_block([lines[number] for lines in by_rank], recording.ranks) for number in numbers)
    return tuple(block for block in blocks if block is not None)


def _lines(path: Path) -> dict[int, _Line]:
    """Return the blocks of one rank since the last restart of its steps."""
    lines: dict[int, _Line] = {}
    with suppress(OSError):
        for raw in read_lines(path):
            if _RESTART_MARK in raw:
                lines.clear()
            elif _MARK in raw:
                with suppress(msgspec.DecodeError):  # truncated by the end of its process
                    line = decode_json(raw, _Line)
                    lines[line.block] = line
    return lines


def _block(lines: Sequence[_Line], ranks: Sequence[RankRecording]) -> Block | None:
    first = lines[0]
    if any(line.place != first.place for line in lines):
        return None
    times, periodic = [], []
    for line, rank in zip(lines, ranks, strict=True):
        rows = _rows(line, rank.steps)
        if rows is None:
            return None
        times.append(_times(line, rank.steps.duration_s[rows]))
        periodic.append(_periodic(rank.steps, rows))
    step_s = np.mean(times, axis=0)
    problems = [line.problem for line in lines if line.problem is not None]
    return Block(
        number=first.block,
        arm=first.arm,
        is_switch=first.is_switch,
        num_carry_over=first.first_measured - first.first,
        step_s=tuple(step_s.tolist()),
        periodic_s=tuple(np.minimum(np.mean(periodic, axis=0), step_s).tolist()),
        problem=problems[0] if problems else None,
    )


def _rows(line: _Line, steps: Steps) -> NDArray[np.bool_] | None:
    """Return the rows of the measured steps; None if one of them is missing."""
    rows: NDArray[np.bool_] = (steps.number >= line.first_measured) & (steps.number < line.end)
    return rows if int(rows.sum()) == line.end - line.first_measured > 0 and line.first < line.first_measured else None


def _times(line: _Line, host_s: Floats) -> Floats:
    """Return the GPU's times of the steps if it took them, else the host's."""
    if line.device_ns is None or len(line.device_ns) != len(host_s):
        return host_s
    return np.array(line.device_ns, dtype=np.float64) / 1e9


def _periodic(steps: Steps, rows: NDArray[np.bool_]) -> Floats:
    columns = (steps.evaluation_s, steps.checkpoint_s, steps.loader_start_s, steps.logging_s)
    recorded = [np.nan_to_num(column[rows]) for column in columns if column is not None]
    return np.asarray(np.sum(recorded, axis=0) if recorded else np.zeros(int(rows.sum())))
