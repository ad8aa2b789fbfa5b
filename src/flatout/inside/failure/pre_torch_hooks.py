"""Hooks for failures before `import torch`, or in a script without torch. They are as light as possible.

In: an exception that the script did not catch, arguments that argparse refuses, a text with which the script exits, a
script or module that does not exist. Out: see `failure_notes`, which is imported only after such a failure. Nothing is
noted in a Python program that the script starts, because the script may not depend on its success.
"""

from __future__ import annotations

import atexit
import os
import sys

from flatout.inside.after_import import after_import
from flatout.inside.failure.exit_text import EXIT_TEXT

TYPE_CHECKING = False  # so that `typing` is not loaded before the script needs it
if TYPE_CHECKING:
    from typing import Any

    from flatout.inside.failure.failure_notes import FailureNotes


class PreTorchHooks:
    """The hooks. Call `install` before the script starts, and `remove` once torch is imported.

    `folder_name` is the variable that names the folder for the notes.
    """

    def __init__(self, folder_name: str) -> None:
        self._folder_name = folder_name
        self._is_over = False
        self._notes: FailureNotes | None = None
        self._own: Any = None  # the hook that ours replaced
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
        """Remove the hooks, because `failure_hooks` replaces them.

        The script has handled any refusal so far, as it imports torch.
        """
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
            error = getattr(sys, "last_value", None)  # set even if the script has replaced the hook
            if error is None and self._missing is not None:  # Python reports a missing script but raises nothing
                error = FileNotFoundError(2, os.strerror(2), self._missing)
            error = error or _missing_module()
            if error is not None:
                self._note(error)
            elif EXIT_TEXT.text is not None:
                notes = self._open_notes()
                if notes is not None:
                    notes.note_exit(EXIT_TEXT.text)
        except Exception:  # noqa: BLE001 - never the job's problem
            self._is_over = True

    def _note(self, error: BaseException) -> None:
        notes = self._open_notes()
        if notes is not None:
            notes.note(error)

    def _note_refused(self, message: str) -> None:
        notes = self._open_notes()
        if notes is not None:
            notes.note_refused(message)

    def _open_notes(self) -> FailureNotes | None:
        """Import `failure_notes` and return the notes; None if this process writes no notes."""
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
    """Return the file that Python was asked to run if that file does not exist, or else None."""
    name = sys.argv[0] if sys.argv else ""
    is_file = name in sys.orig_argv and not name.startswith("-")  # a `multiprocessing` child has its parent's
    if not name or not is_file or os.path.exists(name):
        return None
    return name


def _missing_module() -> ImportError | None:
    """Return an error at exit if Python could not run the module it was asked to run; a module that ran has a path."""
    arguments = sys.orig_argv
    if sys.argv[:1] != ["-m"] or "-m" not in arguments[:-1]:
        return None
    from importlib.util import find_spec

    module = arguments[arguments.index("-m") + 1]
    if find_spec(module.partition(".")[0]) is None:
        return ModuleNotFoundError(f"No module named {module}")
    return ImportError(f"`-m {module}` could not be found or imported")
