"""Start a JAX job once, and read what its processes wrote: a command and its environment -> an `XlaTrial`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import Variable
from flatout.launch import StandardInput
from flatout.launch.limited import run_limited
from flatout.launch.loaded import with_inside
from flatout.records.xla_tuning import XlaTrial

OUTPUT = "output.txt"
MIN_STEPS = 3
_GRACE_S = 30.0


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a trial wrote."""

    facts: dict[str, Any]
    step_s: tuple[tuple[float, ...], ...]  # by process: the steps after the last compilation
    start_s: tuple[float, ...]
    losses: tuple[float, ...]


def run_trial(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    change: str,
    num_steps: int,
    warmup: int,
    limit_s: float,
    standard_input: StandardInput,
) -> tuple[XlaTrial, Processes | None]:
    """Run the command until its steps are counted. The steps of a job that ends before count too."""
    folder.mkdir(mode=0o700, parents=True)
    steps = folder / "steps"
    asked = {"folder": str(steps), "steps": num_steps, "warmup": warmup, "most_s": limit_s}
    words = [word.replace("{trial_dir}", str(folder)) for word in command]
    environment = with_inside({**environment, Variable.XLA_TRIAL: json.dumps(asked)})
    with standard_input.for_run() as descriptor:
        ended = run_limited(words, environment, output=folder / OUTPUT, limit_s=limit_s + _GRACE_S, stdin=descriptor)
    found = read_processes(steps)
    problem = None
    if found is None:
        problem = f"the command ended with code {ended.code} before a step was marked: see {folder / OUTPUT}"
    elif min(map(len, found.step_s)) < MIN_STEPS:
        problem = f"it made fewer than {MIN_STEPS} steps after its last compilation"
    usable = found if problem is None else None
    return (
        XlaTrial(
            change=change,
            folder=str(folder),
            step_s=float(np.mean([np.median(each) for each in usable.step_s])) if usable is not None else None,
            start_s=max(usable.start_s) if usable is not None else None,
            num_steps=min(map(len, found.step_s)) if found is not None else 0,
            losses=found.losses if found is not None else (),
            problem=problem,
        ),
        usable,
    )


def read_processes(folder: Path) -> Processes | None:
    """Read the files of all processes; None if there is none with a step."""
    read = [_read_process(path) for path in sorted(folder.glob("*.jsonl"))]
    processes = [each for each in read if each is not None]
    if not processes:
        return None
    facts, _, _, losses = processes[0]
    return Processes(
        facts=facts,
        step_s=tuple(steps for _, steps, _, _ in processes),
        start_s=tuple(start for _, _, start, _ in processes),
        losses=losses,
    )


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a process wrote: its facts, the time of a mark, or a loss."""

    facts: dict[str, Any] | None = None
    counted_from: Annotated[int, msgspec.Meta(ge=0)] | None = None  # number of the first mark that counts
    s: float | None = None
    loss: float | Literal["nan", "inf", "-inf"] | None = None  # JSON has only finite numbers


def _read_process(path: Path) -> tuple[dict[str, Any], tuple[float, ...], float, tuple[float, ...]] | None:
    facts: dict[str, Any] = {}
    marks: list[float] = []
    losses: list[float] = []
    first = 0
    for line in _lines(path):
        facts = facts if line.facts is None else line.facts
        first = first if line.counted_from is None else line.counted_from
        if line.loss is not None:
            losses.append(float(line.loss))
        elif line.s is not None:
            marks.append(line.s)
    if len(marks) <= first:
        return None
    return facts, tuple(np.diff(marks[first:]).tolist()), marks[first], tuple(losses)


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the lines that can be read: the last one is truncated if the process was ended."""
    with suppress(OSError):
        for line in read_lines(path):
            with suppress(msgspec.DecodeError):
                yield decode_json(line, _Line)
