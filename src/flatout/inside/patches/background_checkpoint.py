"""Make `torch.save` to a path return once the state is copied to the host; a thread writes the same bytes to the path.

Pickling is done at once, as usual: only the records that torch would write to the file are buffered, and storages that
the training can change are copied. At most one file is held. The script waits for the write before it could notice that
the file is missing: at the next save, at exit, before a barrier, and before it opens, checks, renames, removes or lists
a file there, or starts a process. An error of the write is raised at the first of these points.
`torch.distributed.checkpoint.save` is replaced by its asynchronous form, in a separate process group, with waits at the
same points.

A signal that kills the process, and other programs that read the folder, do not wait for the write.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
import torch.serialization

from flatout.inside.after_import import after_import
from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.patches.report import REPORTS, Report

# Functions that change names or pass files to another program wait for all writes; `open` and functions that check a
# file wait for that file.
_WAIT_FOR_ALL = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.copyfile",
    "shutil.move",
}
_WAIT_FOR_ALL |= {"shutil.rmtree", "shutil.make_archive", "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"}
_THREAD = "flatout-checkpoint"
_WAIT_FOR_FOLDER = {"os.listdir", "os.scandir", "glob.glob"}


class CheckpointWriteError(OSError):
    """A checkpoint that was being written in the background could not be written."""


class _Background:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._path: str | None = None
        self._error: BaseException | None = None
        self._future: Any = None  # the future of torch.distributed.checkpoint
        self._group: Any = None
        self._owner = 0  # the thread that waits for the distributed checkpoint

    @property
    def is_busy(self) -> bool:
        """Whether this thread might have to wait; the threads that write never wait."""
        if self._thread is not None and self._thread is not threading.current_thread():
            return True
        return self._future is not None and self._owner == threading.get_ident()

    def begin(self, path: str, write: Any) -> None:
        """Call `write()` in a thread; the previous one must have ended."""

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 - raised where the script waits for it
                self._error = error

        self._path = os.path.abspath(path)
        self._thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        self._thread.start()
        self._report.did("saves")

    def begin_distributed(self, future: Any) -> None:
        self._future, self._owner = future, threading.get_ident()
        self._report.did("distributed_saves")

    def wait(self) -> None:
        """Wait until everything is on disk. Raises CheckpointWriteError, once, if a write failed."""
        if not self.is_busy:
            return
        with self._lock:
            thread, future = self._thread, self._future if self._owner == threading.get_ident() else None
            path, self._path = self._path, None
            if future is not None:
                self._future = None
            if thread is not None:
                thread.join()
            self._thread = None
            error, self._error = self._error, None
            if future is not None:
                try:
                    future.result()
                except Exception as failed:  # noqa: BLE001
                    error, path = failed, "the distributed checkpoint"
        if error is not None:
            raise CheckpointWriteError(
                f"the checkpoint `{path}` could not be written in the background: {error}"
            ) from error

    def wait_for(self, path: Any) -> None:
        """Wait if `path` is the file that is being written, or a folder above it."""
        own = self._path
        if own is None:
            if self._future is not None:
                self.wait()
            return
        with suppress(TypeError, ValueError):
            asked = os.path.abspath(os.fsdecode(path))
            if own == asked or own.startswith(asked.rstrip("/") + "/"):
                self.wait()

    def forked(self) -> None:
        """Forget the write, in a forked child, because the child does not have the writing thread."""
        self._thread = self._path = self._error = self._future = None
        self._lock = threading.RLock()

    def group(self) -> Any:
        """Return a group on the CPU for the checkpoint's own messages, separate from those of the training."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        if self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return self._group


def background_checkpoint(report: Report) -> None:
    report.waits("nothing was saved to a path")
    background = _Background(report)
    _patch_writer(report, background)
    _watch(background)
    after_import(
        "torch.distributed.checkpoint", report.guarded(lambda module: _patch_distributed(report, background, module))
    )
    os.register_at_fork(after_in_child=background.forked)

    def at_exit() -> None:
        try:
            background.wait()
        except CheckpointWriteError as error:
            report.note(str(error))
            REPORTS.write_all()
            print(error, file=sys.stderr)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(1)  # an error at exit would not change the exit code

    EXIT_HANDLERS.at_exit(at_exit)


class _Held:
    """Receives the records that `torch.save` writes, instead of its file."""

    def __init__(self, background: _Background, original: Any, path: str) -> None:
        self._background, self._original, self._path = background, original, path
        self._records: list[tuple[Any, ...]] = []

    def __enter__(self) -> _Held:
        return self

    def write_record(self, name: str, data: Any, size: int) -> None:
        if isinstance(data, torch.UntypedStorage):
            data = _own_copy(data)
        elif isinstance(data, (bytearray, memoryview)):
            data = bytes(data)
        self._records.append((name, data, size))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            return
        records, original, path = self._records, self._original, self._path

        def write() -> None:
            with original(path) as file:
                while records:
                    file.write_record(*records.pop(0))

        self._background.begin(path, write)


def _own_copy(storage: Any) -> Any:
    """Return a copy of a storage, or the storage itself if torch has just copied it from the GPU for this save."""
    if getattr(_saving, "is_copied", False):
        _saving.is_copied = False
        return storage
    return storage.clone()


_saving = threading.local()


def _patch_writer(report: Report, background: _Background) -> None:
    module: Any = torch.serialization
    original = module._open_zipfile_writer
    original_cpu = torch.UntypedStorage.cpu

    @wraps(original)
    def open_writer(name_or_buffer: Any) -> Any:
        if not isinstance(name_or_buffer, (str, os.PathLike)):
            return original(name_or_buffer)
        background.wait()
        if threading.current_thread().name == _THREAD or not _is_writable(name_or_buffer):
            return original(name_or_buffer)
        if getattr(getattr(module, "_serialization_tls", None), "skip_data", False):
            return original(name_or_buffer)
        _saving.is_copied = False
        return _Held(background, original, os.fspath(name_or_buffer))

    @wraps(original_cpu)
    def cpu(self: Any) -> Any:
        if self.device.type == "cpu":
            return original_cpu(self)
        copied = original_cpu(self)
        _saving.is_copied = True
        return copied

    module._open_zipfile_writer = open_writer
    if torch.cuda.device_count() > 0:
        torch.UntypedStorage.cpu = cpu


def _is_writable(path: Any) -> bool:
    """Whether a file can be written; if not, torch raises its own error at once."""
    path = os.fspath(path)
    if not isinstance(path, str):
        return False
    if os.path.lexists(path):
        return os.path.isfile(path) and os.access(path, os.W_OK)
    folder = os.path.dirname(os.path.abspath(path))
    return os.path.isdir(folder) and os.access(folder, os.W_OK)


def _watch(background: _Background) -> None:
    def audit(event: str, args: tuple[Any, ...]) -> None:
        if not background.is_busy:
            return
        if event == "open" or event in _WAIT_FOR_FOLDER:
            if args and not isinstance(args[0], int) and args[0] is not None:
                background.wait_for(args[0])
        elif event in _WAIT_FOR_ALL:
            background.wait()

    sys.addaudithook(audit)
    original_stat, original_exit = os.stat, os._exit

    @wraps(original_stat)
    def stat(path: Any, *args: Any, **kwargs: Any) -> Any:
        if background.is_busy and not isinstance(path, int):
            background.wait_for(path)
        return original_stat(path, *args, **kwargs)

    @wraps(original_exit)
    def leave(status: int) -> Any:
        with suppress(CheckpointWriteError):
            background.wait()
        original_exit(status)

    os.stat = stat
    os._exit = leave
    if torch.distributed.is_available():
        for name in ("barrier", "monitored_barrier", "destroy_process_group"):
            _wait_before(name, background)


def _wait_before(name: str, background: _Background) -> None:
    """Wait before a barrier, because other ranks can read this rank's file after it."""
    from torch.distributed import distributed_c10d

    original = getattr(distributed_c10d, name)

    @wraps(original)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        if background.is_busy:
            background.wait()
        return original(*args, **kwargs)

    for holder in (torch.distributed, distributed_c10d):
        if getattr(holder, name, None) is original:
            setattr(holder, name, waiting)


def _patch_distributed(report: Report, background: _Background, module: Any) -> None:
    original, in_background = module.save, module.async_save

    @wraps(original)
    def save(state_dict: Any, **kwargs: Any) -> Any:
        background.wait()
        if kwargs.get("process_group") is not None or kwargs.get("no_dist") or not torch.distributed.is_initialized():
            report.note("a distributed checkpoint with its own process group, or without any")
            return original(state_dict, **kwargs)
        kwargs.pop("process_group", None)
        future = in_background(state_dict, process_group=background.group(), **kwargs)
        background.begin_distributed(future)
        return None

    module.save = save  # not in the defining module, where `async_save` calls it by this name
