"""How a rank failed: `failure-<host>-<pid>.json` in the recording, so that out-of-memory is told from other failures.

In: an exception, from `pre_torch_hooks` before torch is there, or from `failure_hooks`. Out: one file, for the first
exception. A process that the kernel kills leaves none. Torch is not imported here: its import may be what failed.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from pathlib import Path

from flatout.inside.identity import find_identity, is_loader_worker
from flatout.inside.log import guarded
from flatout.inside.protocol import FailureKind, File, MemoryKind, partial_name, process_name
from flatout.inside.recording.attempt import started_unix_ns

SCHEMA, VERSION = "flatout/failure", 1
_MOST_CHARACTERS, _MOST_CAUSES = 500, 8
_OF_CHILDREN = {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException"}
_DEVICE_WORDS = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "Failed to CUDA calloc",
    "Cuda failure 2 'out of memory'",
)
_OF_WORKER = "Original Traceback (most recent call last):"  # as torch._utils.ExceptionWrapper words it
_OURS = str(Path(__file__).resolve().parents[2])
_HOST_WORDS = ("can't allocate memory", "Cannot allocate memory", "unable to mmap", "CUDA error: unable to pin")


def out_of_memory_where(error: BaseException | None) -> str | None:
    """`device` or `host`, if the exception or what it was raised from is for want of memory."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return None
        if any(
            kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch") for kind in type(error).__mro__
        ):
            return MemoryKind.DEVICE
        if isinstance(error, MemoryError):
            return MemoryKind.HOST
        if isinstance(error, (RuntimeError, OSError)):
            text = str(error)
            if any(word in text for word in _DEVICE_WORDS):
                return MemoryKind.DEVICE
            if any(word in text for word in _HOST_WORDS):
                return MemoryKind.HOST
        error = error.__cause__ or error.__context__
    return None


class FailureNotes:
    """`has_torch`: whether this process has imported it, without which no step of it can be seen."""

    def __init__(self, recording: Path, *, has_torch: bool = True) -> None:
        self._recording = recording
        self._has_torch = has_torch
        self._noted_by = 0

    @guarded
    def note(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)) or self._noted_by == os.getpid():
            return
        if type(error).__name__ in _OF_CHILDREN:  # of a launcher: the rank has told its own
            return
        if is_loader_worker():  # its error is raised again in the rank
            return
        self._noted_by = os.getpid()
        self._write(error)

    @guarded
    def note_refused(self, message: str) -> None:
        """A later exception takes its place: a script may go on after a refusal."""
        if self._noted_by != os.getpid() and not is_loader_worker():
            self._write(SystemExit(message))

    @guarded
    def note_exit(self, text: str) -> None:
        """What the script said when it ended itself by `sys.exit(text)`."""
        if self._noted_by != os.getpid() and not is_loader_worker():
            self._noted_by = os.getpid()
            self._write(SystemExit(text), kind=FailureKind.EXIT)

    @guarded
    def withdraw(self) -> None:
        """The script has got over it."""
        self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        return self._recording / File.FAILURE.of(process_name(os.uname().nodename, os.getpid()))

    def _write(self, error: BaseException, *, kind: str | None = None) -> None:
        identity = find_identity()
        where = out_of_memory_where(error)
        content = {
            "schema": SCHEMA,
            "version": VERSION,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "hostname": os.uname().nodename,
            "pid": os.getpid(),
            "unix_s": round(time.time(), 3),
            "kind": (kind or FailureKind.ERROR) if where is None else FailureKind.OUT_OF_MEMORY,
            "where": where,
            "exception": type(error).__name__,
            "message": _message(error)[:_MOST_CHARACTERS],
            "line": _raised_at(error),
            "has_torch": self._has_torch,
            "age_s": _age_s(),
        }
        path = self._path()
        partial = path.with_name(partial_name(path.name))
        partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
        partial.replace(path)


def _message(error: BaseException) -> str:
    """Of an error that a loader's worker had, its own words too, which stand last, behind the worker's traceback."""
    text = error.msg if isinstance(error, SyntaxError) and error.filename else str(error)
    if _OF_WORKER not in text:
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[0].removesuffix('.')}: {lines[-1]}"


def _raised_at(error: BaseException) -> str | None:
    """`train.py:31`: the innermost line of the user's own code, or where there is none, the innermost."""
    if isinstance(error, SyntaxError) and error.filename and not is_installed(error.filename):
        return f"{os.path.basename(error.filename)}:{error.lineno}"  # which was not run
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__) if number]
    own = [line for line in lines if not is_installed(line[0])]
    file, number = (own or lines or [("", 0)])[-1]
    return f"{os.path.basename(file)}:{number}" if file else None


def is_installed(file: str) -> bool:
    """Python's, a package's or ours, and no file of the job."""
    return "site-packages" in file or file.startswith(("<", _OURS, os.path.dirname(os.__file__)))


def _age_s() -> float | None:
    """How long this process has run; None where the kernel does not tell."""
    began_ns = started_unix_ns(os.getpid())
    return None if began_ns is None else max(round((time.time_ns() - began_ns) / 1e9, 3), 0.0)
