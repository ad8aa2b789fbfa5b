"""Find the steps in an XLA profile, and the host's main thread.

In: the lines of a profile. Out: `Marks`. The steps are those that the script marked with `StepTraceAnnotation`, else
those that a device marks, else the calls of the jitted function that takes most of the time, else the runs of the
program that does. A TPU's own marks and programs come first: its host runs ahead, and no event links the two. A step
lasts until the next one begins, so that what the script does between two marks belongs to a step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.read.xla_devices import is_of_tpu
from flatout.read.xla_lines import XlaLine, XlaProfile
from flatout.records.events import NULL, Quality

MIN_CALLS = 3  # of a function whose calls count as steps
_JITTED = re.compile(r"^(?:PjitFunction|PjRt.*Execute|pjit)\((.*)\)$")
_PROGRAM_ID = re.compile(r"\(\d+\)$")
_MAX_STEP = 1 << 53
_Spans = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # numbers, starts and ends


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    number: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: str | None  # the line of the host's main thread; None if the profile has no host
    quality: tuple[Quality, ...] = ()


def find_marks(profile: XlaProfile, host: Sequence[XlaLine], device: Sequence[XlaLine]) -> Marks:
    """Return the steps by start."""
    names = profile.names
    main = _main_line(host, names)
    thread = main.name if main is not None else None
    marked = _annotated(host)
    of_device = _device_steps(device, names)
    is_tpu = any(map(is_of_tpu, device))
    if of_device is not None and (is_tpu or marked is None):
        return _contiguous(*of_device, thread)
    programs = _programs(device, names)
    if programs is not None:
        return _of_programs(programs, marked, thread)
    if marked is not None:
        return _contiguous(*marked, thread)
    for found in (_calls(main, names), _runs(host, names)):
        if found is not None:
            (number, start_ns, end_ns), what = found
            return _contiguous(number, start_ns, end_ns, thread, _guess_note(what))
    return Marks(number=_none(), start_ns=_none(), end_ns=_none(), thread=thread)


def _guess_note(what: str) -> tuple[Quality, ...]:
    return (
        Quality(
            problem="the script marks no steps (jax.profiler.StepTraceAnnotation)",
            effect=f"{what} count as the steps, from the beginning of one to the beginning of the next",
        ),
    )


def _main_line(host: Sequence[XlaLine], names: Sequence[str]) -> XlaLine | None:
    """Return the thread that marks steps, or else the one with most calls of jitted functions, or of Python."""
    if not host:
        return None
    is_jitted = np.array([_JITTED.match(name) is not None for name in names], np.bool_)
    is_python = np.array([name.startswith("$") for name in names], np.bool_)

    def weight(line: XlaLine) -> tuple[int, int, int, int]:
        num_marks = int((line.number("step_num") != NULL).sum())
        num_calls, num_python = int(is_jitted[line.event_name].sum()), int(is_python[line.event_name].sum())
        return num_marks, num_calls, num_python, int(line.name.startswith("python"))

    main = max(host, key=weight)
    return main if any(weight(main)) else None


def _annotated(host: Sequence[XlaLine]) -> _Spans | None:
    """Return the marked steps, of the annotation with the most of them: training and evaluation may both be marked."""
    best = None
    for line in host:
        step = line.number("step_num")
        is_mark = (step >= 0) & (step < _MAX_STEP)
        if not is_mark.any():
            continue
        counts = np.bincount(line.event_name[is_mark])
        rows = np.flatnonzero(is_mark & (line.event_name == counts.argmax()))
        if best is None or len(rows) > len(best[0]):
            best = step[rows], line.start_ns[rows], line.start_ns[rows] + line.duration_ns[rows]
    return best


def _device_steps(device: Sequence[XlaLine], names: Sequence[str]) -> _Spans | None:
    line = next((each for each in device if each.name == "Steps"), None)
    if line is None:
        return None
    number = np.array([int(name) if name.isdigit() and len(name) < 16 else NULL for name in names], np.int64)
    rows = np.flatnonzero(number[line.event_name] != NULL)
    if not len(rows):
        return None
    return number[line.event_name[rows]], line.start_ns[rows], line.start_ns[rows] + line.duration_ns[rows]


def _programs(device: Sequence[XlaLine], names: Sequence[str]) -> tuple[_Spans, str] | None:
    """Return the runs of the program that takes most of the time of a TPU, if it runs often enough."""
    line = next((each for each in device if is_of_tpu(each) and each.name == "XLA Modules"), None)
    if line is None:
        return None
    spent = np.bincount(line.event_name, weights=line.duration_ns)
    rows = np.flatnonzero(line.event_name == spent.argmax())
    if len(rows) < MIN_CALLS:
        return None
    rows = rows[np.argsort(line.start_ns[rows], kind="stable")]
    start_ns = line.start_ns[rows]
    spans = np.arange(len(rows)), start_ns, start_ns + line.duration_ns[rows]
    return spans, f"runs of {_PROGRAM_ID.sub('', names[int(spent.argmax())])} on the device"


def _of_programs(programs: tuple[_Spans, str], marked: _Spans | None, thread: str | None) -> Marks:
    """Return the runs of a TPU's program as the steps, in groups of equal size if the script marks fewer steps."""
    (number, start_ns, end_ns), what = programs
    if marked is None:
        return _contiguous(number, start_ns, end_ns, thread, _guess_note(what))
    num_runs, rest = divmod(len(number), len(marked[0]))
    if num_runs == 0 or rest:
        return _contiguous(*marked, thread)
    return _contiguous(np.sort(marked[0]), start_ns[::num_runs], end_ns[num_runs - 1 :: num_runs], thread)


def _calls(main: XlaLine | None, names: Sequence[str]) -> tuple[_Spans, str] | None:
    """Return the calls of the jitted function that takes most of the time, if it is called often enough."""
    if main is None:
        return None
    function = [_JITTED.match(name) for name in names]
    spent: dict[str, int] = {}
    for code in np.unique(main.event_name).tolist():
        match = function[code]
        rows = np.flatnonzero(main.event_name == code)
        if match is not None and len(outermost(main, rows)) >= MIN_CALLS:
            spent[names[code]] = int(main.duration_ns[outermost(main, rows)].sum())
    if not spent:
        return None
    name = max(spent, key=lambda each: spent[each])
    rows = outermost(main, np.flatnonzero(main.event_name == names.index(name)))
    start_ns = main.start_ns[rows]
    return (np.arange(len(rows)), start_ns, start_ns + main.duration_ns[rows]), f"calls of {name}"


def outermost(line: XlaLine, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the events that are within no other of them: Python and C++ may both record a call."""
    rows = rows[np.lexsort((-line.duration_ns[rows], line.start_ns[rows]))]
    end_ns = line.start_ns[rows] + line.duration_ns[rows]
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end_ns)[:-1])
    return rows[line.start_ns[rows] >= before]


def _runs(host: Sequence[XlaLine], names: Sequence[str]) -> tuple[_Spans, str] | None:
    """Return the runs of programs on a CPU by their number, if there are enough."""
    run = np.concatenate([line.number("run_id") for line in host]) if host else _none()
    is_run = run != NULL
    if not is_run.any():
        return None
    start = np.concatenate([line.start_ns for line in host])[is_run]
    end = start + np.concatenate([line.duration_ns for line in host])[is_run]
    numbers, inverse = np.unique(run[is_run], return_inverse=True)
    if len(numbers) < MIN_CALLS:
        return None
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    last = np.zeros(len(numbers), np.int64)
    np.minimum.at(first, inverse, start)
    np.maximum.at(last, inverse, end)
    order = np.argsort(first, kind="stable")
    return (np.arange(len(numbers)), first[order], last[order]), "runs of programs"


def _contiguous(
    number: NDArray[np.int64],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    thread: str | None,
    quality: tuple[Quality, ...] = (),
) -> Marks:
    order = np.argsort(start_ns, kind="stable")
    number, start_ns, end_ns = number[order], start_ns[order], end_ns[order]
    return Marks(
        number=number,
        start_ns=start_ns,
        end_ns=np.append(start_ns[1:], end_ns[-1:]),
        thread=thread,
        quality=quality,
    )


def _none() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)
