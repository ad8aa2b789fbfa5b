"""Write to `failure-<host>-<pid>.json` in the recording how a rank failed, with a separate kind for out of memory.

In: an exception, from `pre_torch_hooks` before torch is imported, or from `failure_hooks`. Out: one file, for the first
exception with those that led to it, their secrets masked; a launcher writes how its ranks ended. A process that the
kernel kills leaves no file. This module does not import torch, as that import may have failed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from flatout.inside.identity import find_identity, is_loader_worker
from flatout.inside.log import guarded
from flatout.inside.protocol import FailureKind, File, MemoryKind, partial_name, process_name
from flatout.inside.recording.attempt import started_unix_ns
from flatout.secrets import Masker, write_private

SCHEMA, VERSION = "flatout/failure", 1
_MAX_CHARACTERS, _MAX_CAUSES = 2000, 8
_OF_CHILDREN = {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException"}
_DEVICE_PHRASES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "Failed to CUDA calloc",
    "Cuda failure 2 'out of memory'",
)
_OF_WORKER = "Original Traceback (most recent call last):"  # the wording of torch._utils.ExceptionWrapper
_OURS = str(Path(__file__).resolve().parents[2])
_WRITERS = ("torch/serialization.py", "safetensors/torch.py", "safetensors/numpy.py")  # name their file in a variable
_NAMES_OF_FILES = ("f", "name", "name_or_buffer", "filename", "file", "path")
# Words that cause free space on the disk and in /dev/shm to be measured. It is not measured for other errors, because a
# dead file server would block.
_ABOUT_SPACE = ("space", "quota", "write", "inline_container", "shared memory", "/dev/shm", "unexpected pos", "mmap")
_HOST_PHRASES = ("can't allocate memory", "Cannot allocate memory", "unable to mmap", "CUDA error: unable to pin")


def out_of_memory_where(error: BaseException | None) -> str | None:
    """Return the memory that has run out, a MemoryKind; None if neither the exception nor its cause concerns memory."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            return None
        where = _memory_of(error)
        if where is not None:
            return where
        error = error.__cause__ or error.__context__
    return None


def _memory_of(error: BaseException) -> str | None:
    if any(_is_torch_out_of_memory(kind) for kind in type(error).__mro__):
        return MemoryKind.DEVICE
    if isinstance(error, MemoryError):
        return MemoryKind.HOST
    if not isinstance(error, (RuntimeError, OSError)):
        return None
    text = str(error)
    if any(phrase in text for phrase in _DEVICE_PHRASES):
        return MemoryKind.DEVICE
    if any(phrase in text for phrase in _HOST_PHRASES):
        return MemoryKind.HOST
    return None


def _is_torch_out_of_memory(kind: type) -> bool:
    return kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch")


class FailureNotes:
    """The failure of this process.

    `has_torch` says whether the process has imported torch; without torch, its steps cannot be detected.
    """

    def __init__(self, recording: Path, *, has_torch: bool = True) -> None:
        self._recording = recording
        self._has_torch = has_torch
        self._noted_by = 0

    @guarded
    def note(self, error: BaseException | None) -> None:
        """Note an exception that the script did not catch; only the first exception counts."""
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return
        if self._noted_by == os.getpid():
            return
        if type(error).__name__ in _OF_CHILDREN:  # raised in a launcher; the rank has noted its own exception
            self._write_children(error)
            return
        if is_loader_worker():  # the worker's error is raised again in the rank
            return
        self._noted_by = os.getpid()
        self._write(error)

    @guarded
    def note_refused(self, message: str) -> None:
        """Note the arguments that argparse refused.

        A later exception replaces this, because a script can continue after that.
        """
        if self._noted_by != os.getpid() and not is_loader_worker():
            self._write(SystemExit(message))

    @guarded
    def note_exit(self, text: str) -> None:
        """Note the text if the script ended itself by `sys.exit(text)`."""
        if self._noted_by != os.getpid() and not is_loader_worker():
            self._noted_by = os.getpid()
            self._write(SystemExit(text), kind=FailureKind.EXIT)

    @guarded
    def withdraw(self) -> None:
        """Remove the note, because the script has handled the failure."""
        self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        return self._recording / File.FAILURE.of(process_name(os.uname().nodename, os.getpid()))

    def _write(self, error: BaseException, *, kind: str | None = None) -> None:
        identity = find_identity()
        chain = _chain(error)
        where = out_of_memory_where(error)
        if where is not None:
            kind = FailureKind.OUT_OF_MEMORY
        masker = Masker(os.environ, sys.argv)
        content = {
            "schema": SCHEMA,
            "version": VERSION,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "hostname": os.uname().nodename,
            "pid": os.getpid(),
            "unix_s": round(time.time(), 3),
            "kind": kind or FailureKind.ERROR,
            "where": where,
            **_described(error, masker),
            "line": _raised_at(error),
            "has_torch": self._has_torch,
            "age_s": _age_s(),
            "chain": [
                {"exception": type(one).__name__, "message": masker.text(_message(one))[:_MAX_CHARACTERS]}
                for one in chain[:-1]
            ],
            "space": _space(chain),
        }
        self._replace(self._path(), content)

    def _write_children(self, error: BaseException) -> None:
        """Write how a launcher's ranks ended, as the launcher reports it: a code, or a negative signal."""
        children = _children(error)
        if not children:
            return
        content = {
            "schema": "flatout/children",
            "version": 1,
            "hostname": os.uname().nodename,
            "pid": os.getpid(),
            "unix_s": round(time.time(), 3),
            "children": children,
            "is_whole": isinstance(getattr(error, "failures", None), dict),  # torchrun's: of all ranks that failed
        }
        name = File.CHILDREN.of(process_name(os.uname().nodename, os.getpid()))
        self._replace(self._recording / name, content)

    def _replace(self, path: Path, content: dict[str, Any]) -> None:
        partial = path.with_name(partial_name(path.name))
        write_private(partial, json.dumps(content) + "\n")
        partial.replace(path)


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exceptions that led to this one, the original one first, and this one last."""
    chain = [error]
    while len(chain) < _MAX_CAUSES:
        before = chain[-1].__cause__
        if before is None and not chain[-1].__suppress_context__:
            before = chain[-1].__context__
        if before is None or before in chain:
            break
        chain.append(before)
    return chain[::-1]


def _described(error: BaseException, masker: Masker) -> dict[str, str]:
    return {"exception": type(error).__name__, "message": masker.text(_message(error))[:_MAX_CHARACTERS]}


def _children(error: BaseException) -> list[dict[str, int]]:
    """Return rank, PID and exit code of each rank in an error of torchrun or of `torch.multiprocessing.spawn`."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):
        return [
            {"rank": int(rank), "pid": int(failure.pid), "code": int(failure.exitcode)}
            for rank, failure in failures.items()
            if hasattr(failure, "exitcode")
        ]
    code = getattr(error, "exit_code", None)
    if code is None:
        return []
    return [
        {"rank": int(getattr(error, "error_index", -1)), "pid": int(getattr(error, "error_pid", 0)), "code": int(code)}
    ]


def _space(chain: list[BaseException]) -> dict[str, Any] | None:
    """Return the free space where a write failed and in /dev/shm; None if no error concerns space."""
    texts = " ".join(str(error).lower() for error in chain)
    if not any(word in texts for word in _ABOUT_SPACE):
        return None
    folder = next((name for name in map(_file_of, chain) if name is not None), os.getcwd())
    while folder != os.path.dirname(folder) and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return {"folder": folder, "free_bytes": _free_bytes(folder), "shm_free_bytes": _free_bytes("/dev/shm")}


def _file_of(error: BaseException) -> str | None:
    """Return the file that an error concerns, from the error itself or from the variables of the writing function."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return os.path.abspath(error.filename)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.endswith(_WRITERS):
            continue
        values = [frame.f_locals.get(name) for name in _NAMES_OF_FILES]
        names = [getattr(value, "name", value) for value in values]
        for name in names:
            if isinstance(name, (str, os.PathLike)):
                return os.path.abspath(os.fspath(name))
    return None


def _free_bytes(folder: str) -> int | None:
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return system.f_bavail * system.f_frsize


def _message(error: BaseException) -> str:
    """Return the message; for an error of a loader worker, add the worker's own, which follows its traceback."""
    text = error.msg if isinstance(error, SyntaxError) and error.filename else str(error)
    if _OF_WORKER not in text:
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[0].removesuffix('.')}: {lines[-1]}"


def _raised_at(error: BaseException) -> str | None:
    """Return the innermost line of the user's own code, or else the innermost line of all, e.g. `train.py:31`."""
    if isinstance(error, SyntaxError) and error.filename and not is_installed(error.filename):
        return f"{os.path.basename(error.filename)}:{error.lineno}"  # a syntax error: the file never ran
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, number) for frame, number in frames if number]
    own = [line for line in lines if not is_installed(line[0])]
    file, number = (own or lines or [("", 0)])[-1]
    return f"{os.path.basename(file)}:{number}" if file else None


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python, a package or Flatout, and not to the job."""
    return "site-packages" in file or file.startswith(("<", _OURS, os.path.dirname(os.__file__)))


def _age_s() -> float | None:
    """Return how long this process has run, in seconds; None if the kernel does not report it."""
    began_ns = started_unix_ns(os.getpid())
    if began_ns is None:
        return None
    return max(round((time.time_ns() - began_ns) / 1e9, 3), 0.0)
