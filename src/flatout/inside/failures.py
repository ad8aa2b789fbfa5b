"""How a rank failed: `failure-<host>-<pid>.json` in the recording, so that out-of-memory is told from other failures.

In: an exception that the script did not catch, in its main thread, in another, or in a rank that torch.multiprocessing
started. Out: one file, of the first. The script's own hooks run as ever, after ours. A process that the kernel kills
leaves none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from functools import wraps
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from flatout.inside.ending import ENDING
from flatout.inside.identity import find_identity, is_loader_worker
from flatout.inside.log import guarded

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
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HOST_WORDS = ("can't allocate memory", "Cannot allocate memory", "unable to mmap", "CUDA error: unable to pin")


def out_of_memory_where(error: BaseException | None) -> str | None:
    """`device` or `host`, if the exception or what it was raised from is for want of memory."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return None
        if isinstance(
            error, torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError
        ):
            return "device"
        if isinstance(error, MemoryError):
            return "host"
        if isinstance(error, (RuntimeError, OSError)):
            text = str(error)
            if any(word in text for word in _DEVICE_WORDS):
                return "device"
            if any(word in text for word in _HOST_WORDS):
                return "host"
        error = error.__cause__ or error.__context__
    return None


class _Notes:
    def __init__(self, recording: Path) -> None:
        self._recording = recording
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

    def _write(self, error: BaseException) -> None:
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
            "kind": "error" if where is None else "out_of_memory",
            "where": where,
            "exception": type(error).__name__,
            "message": _message(error)[:_MOST_CHARACTERS],
            "line": _raised_at(error),
        }
        path = self._recording / f"failure-{os.uname().nodename}-{os.getpid()}.json"
        partial = path.with_name(f".{path.name}.part")
        partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
        partial.replace(path)


def _message(error: BaseException) -> str:
    """Of an error that a loader's worker had, its own words too, which stand last, behind the worker's traceback."""
    text = str(error)
    if _OF_WORKER not in text:
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[0].removesuffix('.')}: {lines[-1]}"


def _raised_at(error: BaseException) -> str | None:
    """`train.py:31`: the innermost line of the user's own code, or where there is none, the innermost."""
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__) if number]
    own = [line for line in lines if not is_installed(line[0])]
    file, number = (own or lines or [("", 0)])[-1]
    return f"{os.path.basename(file)}:{number}" if file else None


def is_installed(file: str) -> bool:
    """Python's, a package's or ours, and no file of the job."""
    return "site-packages" in file or file.startswith(("<", _OURS, os.path.dirname(os.__file__)))


def note_failures(recording: Path) -> None:
    notes = _Notes(recording)
    _chain_hooks(notes)
    _wrap_processes(notes)
    _wrap_arguments(notes)
    ENDING.at_exit(lambda: notes.note(getattr(sys, "last_value", None)))  # where a script has a hook of its own


def _chain_hooks(notes: _Notes) -> None:
    own, own_in_threads = sys.excepthook, threading.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        notes.note(error)
        own(kind, error, trace)

    def excepthook_in_threads(args: Any) -> None:
        if out_of_memory_where(args.exc_value) is not None:  # the process may outlive a thread
            notes.note(args.exc_value)
        own_in_threads(args)

    sys.excepthook, threading.excepthook = excepthook, excepthook_in_threads


def _wrap_arguments(notes: _Notes) -> None:
    """What argparse refuses ends the process in order; a launcher then tells of code 1, and of no reason."""
    original = argparse.ArgumentParser.error

    @wraps(original)
    def error(self: Any, message: str) -> Any:
        notes.note_refused(f"{self.prog}: {message}")
        original(self, message)

    argparse.ArgumentParser.error = error  # type: ignore[method-assign]


def _wrap_processes(notes: _Notes) -> None:
    """Ranks of `torch.multiprocessing.spawn` and processes of `multiprocessing` catch what their function raises."""
    spawn: Any = import_module("torch.multiprocessing.spawn")  # torch.multiprocessing.spawn is the function
    original_wrap, original_run = spawn._wrap, BaseProcess.run

    @wraps(original_wrap)
    def wrap(fn: Any, i: Any, args: Any, error_file: Any) -> Any:
        def noting(*arguments: Any) -> Any:
            try:
                return fn(*arguments)
            except Exception as error:
                notes.note(error)
                raise

        return original_wrap(noting, i, args, error_file)

    @wraps(original_run)
    def run(self: Any) -> None:
        try:
            original_run(self)
        except Exception as error:
            notes.note(error)
            raise

    spawn._wrap = wrap
    BaseProcess.run = run  # type: ignore[method-assign]
