"""The hooks that report a failure to `failure_notes` once torch is imported.

In: an exception that the script did not catch, in its main thread, in another thread or in a rank started by
torch.multiprocessing; arguments that argparse refuses; and the text with which a script exits. The script's own hooks
still run, after ours.
"""

from __future__ import annotations

import argparse
import sys
import threading
from functools import wraps
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.failure.exit_text import EXIT_TEXT
from flatout.inside.failure.failure_notes import FailureNotes, out_of_memory_where


def note_failures(recording: Path) -> None:
    notes = FailureNotes(recording)
    _chain_hooks(notes)
    _wrap_processes(notes)
    _wrap_arguments(notes)
    EXIT_HANDLERS.at_exit(lambda: _note_at_exit(notes))


def _note_at_exit(notes: FailureNotes) -> None:
    notes.note(getattr(sys, "last_value", None))  # set even if the script has replaced the hook
    if EXIT_TEXT.text is not None:
        notes.note_exit(EXIT_TEXT.text)


def _chain_hooks(notes: FailureNotes) -> None:
    own, own_in_threads = sys.excepthook, threading.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        notes.note(error)
        own(kind, error, trace)

    def excepthook_in_threads(args: Any) -> None:
        if out_of_memory_where(args.exc_value) is not None:  # the process can survive other errors
            notes.note(args.exc_value)
        own_in_threads(args)

    sys.excepthook, threading.excepthook = excepthook, excepthook_in_threads


def _wrap_arguments(notes: FailureNotes) -> None:
    """Note arguments that argparse refuses: it exits normally, and a launcher reports code 1 without a reason."""
    original = argparse.ArgumentParser.error

    @wraps(original)
    def error(self: Any, message: str) -> Any:
        notes.note_refused(f"{self.prog}: {message}")
        original(self, message)

    argparse.ArgumentParser.error = error  # type: ignore[method-assign]


def _wrap_processes(notes: FailureNotes) -> None:
    """Note exceptions in `torch.multiprocessing.spawn` ranks and in `multiprocessing` processes, which catch them."""
    spawn: Any = import_module("torch.multiprocessing.spawn")  # attribute access would return the function
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
        except SystemExit as end:
            if isinstance(end.code, (str, Exception)):
                notes.note_exit(str(end.code))
            raise

    spawn._wrap = wrap
    BaseProcess.run = run  # type: ignore[method-assign]
