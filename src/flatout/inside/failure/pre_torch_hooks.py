"""Failures before `import torch`, or of a script without it: hooks as light as they can be, until torch takes over.

In: an exception that the script did not catch, what argparse refuses, a text that the script ends with, a script or
module that is not there. Out: see `failures`, which is imported only then. A Python program that the script starts
notes nothing here: its script may do without it.
"""

from __future__ import annotations

import atexit
import os
import sys

from flatout.inside.after_import import after_import
from flatout.inside.failure.exit_text import EXIT_TEXT

TYPE_CHECKING = False  # `typing` itself is not loaded before the script needs it
if TYPE_CHECKING:
    from typing import Any

    from flatout.inside.failure.failure_notes import FailureNotes


class PreTorchHooks:
    """`folder_name`: of the variable that names the folder for the notes."""

    def __init__(self, folder_name: str) -> None:
        self._folder_name = folder_name
        self._is_over = False
        self._notes: FailureNotes | None = None
        self._own: Any = None  # what was there before ours
        self._hook: Any = None
        self._missing: str | None = None
        self._own_error: Any = None
        self._error: Any = None

    def install(self) -> None:
        self._own, self._missing = sys.excepthook, _missing_script()

        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            self._note(error)
            self._own(kind, error, trace)

        self._hook = sys.excepthook = excepthook
        EXIT_TEXT.watch()
        atexit.register(self._exits)
        after_import("argparse", self._wrap_arguments)

    def remove(self) -> None:
        """Torch is there, and `failure_hooks` are put in. What was refused so far, the script has got over."""
        self._is_over = True
        if self._notes is not None:
            self._notes.withdraw()
        if sys.excepthook is self._hook:
            sys.excepthook = self._own
        parser = getattr(sys.modules.get("argparse"), "ArgumentParser", None)
        if parser is not None and parser.error is self._error:
            parser.error = self._own_error

    def _wrap_arguments(self, argparse: Any) -> None:
        if self._is_over:
            return
        own = self._own_error = argparse.ArgumentParser.error

        def error(parser: Any, message: str) -> Any:
            self._note_refused(f"{parser.prog}: {message}")
            own(parser, message)

        error.__doc__ = own.__doc__
        self._error = argparse.ArgumentParser.error = error

    def _exits(self) -> None:
        try:
            error = getattr(sys, "last_value", None)  # the script may have a hook of its own
            if error is None and self._missing is not None:  # Python says so itself, and raises nothing
                error = FileNotFoundError(2, os.strerror(2), self._missing)
            error = error or _missing_module()
            if error is not None:
                self._note(error)
            elif EXIT_TEXT.text is not None and (notes := self._made()) is not None:
                notes.note_exit(EXIT_TEXT.text)
        except Exception:  # noqa: BLE001 - never the job's problem
            self._is_over = True

    def _note(self, error: BaseException) -> None:
        if (notes := self._made()) is not None:
            notes.note(error)

    def _note_refused(self, message: str) -> None:
        if (notes := self._made()) is not None:
            notes.note_refused(message)

    def _made(self) -> FailureNotes | None:
        if self._is_over:
            return None
        try:
            if self._notes is None:
                from pathlib import Path

                from flatout.inside.failure.failure_notes import FailureNotes
                from flatout.inside.identity import is_helper
                from flatout.inside.log import LOG

                self._is_over = is_helper(os.environ, self._folder_name)
                if not self._is_over:
                    LOG.folder = Path(os.environ[self._folder_name])
                    self._notes = FailureNotes(LOG.folder, has_torch=False)
        except Exception:  # noqa: BLE001 - never the job's problem
            self._is_over = True
        return self._notes


def _missing_script() -> str | None:
    """Of the words that Python was started with: where a file is to be run that is not there."""
    name = sys.argv[0] if sys.argv else ""
    is_file = name in sys.orig_argv and not name.startswith("-")  # of a child of `multiprocessing`, it is its parent's
    return name if is_file and name and not os.path.exists(name) else None


def _missing_module() -> ImportError | None:
    """At the end: what is run as a module has a path for its name by then."""
    words = sys.orig_argv
    if sys.argv[:1] != ["-m"] or "-m" not in words[:-1]:
        return None
    from importlib.util import find_spec

    module = words[words.index("-m") + 1]
    if find_spec(module.partition(".")[0]) is None:
        return ModuleNotFoundError(f"No module named {module}")
    return ImportError(f"`-m {module}` could not be found or imported")
