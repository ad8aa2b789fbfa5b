"""Damage samples at random, have them read, and report each reader whose answer a user should not see.

In: a reader and numbers of inputs; the same number makes the same input. Out: a `Tally` with the findings. An answer is
right if it ends normally, or in an error that a user can fix. A finding is an internal error, a time or a memory beyond
the bounds, or a reader that waits.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from unittest.mock import patch

import typer
from tests.fuzz.mutations import mutate
from tests.fuzz.readers import Reader
from tests.fuzz.samples import Sample

from flatout.errors import FlatoutError

MAX_CPU_S = 5.0
MAX_WAIT_S = 20.0  # beyond any pause of a busy machine; a reader of a pipe waits forever
MAX_BYTES = 256 << 20  # above what the process had before
_STOP_BYTES = 2 << 30  # address space above what the process had: a larger request is refused
_SPECIAL = 0.03  # share of inputs in which a file is replaced by something that is no file
_USAGE_ERROR = typer.BadParameter.__mro__[1]


class _SlowError(BaseException):
    """Raised in a reader that exceeds its time. It is no `Exception`, so that a reader does not catch it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a user should not see, where it happened, and how to see it again."""

    what: str
    where: str
    reader: str
    number: int


@dataclass(slots=True)
class Tally:
    """What the inputs of one reader needed, and what was found."""

    reader: str
    num_inputs: int = 0
    num_refused: int = 0  # ended in an error that a user can fix
    worst_cpu_s: float = 0.0
    worst_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def fuzz(reader: Reader, numbers: Iterable[int], folder: Path) -> Tally:
    """Have the damaged inputs with these numbers read. `folder` must be empty, and is empty afterwards."""
    tally = Tally(reader.name)
    samples = reader.samples()
    for number in numbers:
        _fuzz_once(reader, samples, number, folder, tally)
    return tally


def _fuzz_once(reader: Reader, samples: list[Sample], number: int, folder: Path, tally: Tally) -> None:
    random = Random(f"{reader.name} {number}")
    path = damaged(random.choice(samples), random, folder / "input")
    outcome = answer(reader, path)
    tally.num_inputs += 1
    tally.num_refused += outcome.is_refused
    tally.worst_cpu_s = max(tally.worst_cpu_s, outcome.cpu_s)
    tally.worst_bytes = max(tally.worst_bytes, outcome.num_bytes)
    if outcome.problem:
        tally.findings.append(Finding(outcome.problem, outcome.where, reader.name, number))
    for child in folder.iterdir():
        shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def damaged(sample: Sample, random: Random, folder: Path) -> Path:
    """Write a sample with one damaged file into a new folder, and return the path that the reader is given."""
    names = sorted(set(sample.files) - sample.fixed)
    chosen = random.choice(names)
    for name, data in sample.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(mutate(data, name, random) if name == chosen else data)
    if random.random() < _SPECIAL:
        _replace(folder / chosen, random)
    return folder / sample.given


def _replace(path: Path, random: Random) -> None:
    path.unlink()
    match random.randrange(6):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(path)
        case 2:
            path.symlink_to("/dev/zero")
        case 3:
            path.mkdir()
        case 4:
            path.symlink_to("missing")
        case 5:
            pass  # it is missing


@dataclass(frozen=True, slots=True)
class Outcome:
    is_refused: bool
    problem: str  # "" if the answer is right
    where: str
    cpu_s: float
    num_bytes: int


def answer(reader: Reader, path: Path) -> Outcome:
    """Have the reader read `path`, and measure it."""
    before_bytes = _reset_peak()
    began_s = time.process_time()
    is_refused, problem, where = False, "", ""
    try:
        with _bounded(), _silent(path.parent):
            reader.read(path)
    except (FlatoutError, _USAGE_ERROR) as error:
        is_refused = True
        problem = _problem_of_message(str(error))
    except SystemExit:
        pass
    except _SlowError as error:
        problem, where = str(error), _place(error)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a reader raises
        problem, where = f"{type(error).__name__}: {str(error)[:150]}", _place(error)
    cpu_s = time.process_time() - began_s
    num_bytes = max(_peak_bytes() - before_bytes, 0)
    if not problem and num_bytes > MAX_BYTES:
        problem = f"memory: more than {MAX_BYTES >> 20} MiB"
    return Outcome(is_refused, problem, where, cpu_s, num_bytes)


def _problem_of_message(message: str) -> str:
    """Return what is wrong with an error message; "" if nothing is."""
    if len(message) > 2000:
        return f"a message of {len(message)} characters"
    return ""


def _place(error: BaseException) -> str:
    """Return the innermost line of Flatout in the traceback, or of a library, if it called none of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/flatout/" in frame.filename]
    if not ours:
        return ""
    last = ours[-1]
    return f"{last.filename.rpartition('/flatout/')[2]}:{last.lineno} {last.name}"


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Bound the processor time, the waiting and the memory of a block."""

    def stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGPROF:
            raise _SlowError(f"time: more than {MAX_CPU_S:g} s of processor time")
        raise _SlowError(f"time: it waited more than {MAX_WAIT_S:g} s")

    former = [(number, signal.signal(number, stop)) for number in (signal.SIGPROF, signal.SIGALRM)]
    limits = resource.getrlimit(resource.RLIMIT_AS)
    soft = _address_space_bytes() + _STOP_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (soft, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, MAX_WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in former:
            signal.signal(number, handler)


@contextlib.contextmanager
def _silent(folder: Path) -> Iterator[None]:
    """Take what a command prints, and let it write only into `folder`."""
    former_folder, former_arguments = os.getcwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["flatout"]
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    try:
        # In one process, whose time and memory are measured, and without a pool that the next input would wait for.
        one_core = patch("flatout.rank_executor.num_cores", return_value=1)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), one_core:
            yield
    finally:
        os.chdir(former_folder)
        sys.argv = former_arguments


def _reset_peak() -> int:
    """Make the kernel forget the peak of this process's memory; return what it uses now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    return _status("VmHWM")


def _address_space_bytes() -> int:
    return _status("VmSize")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)
