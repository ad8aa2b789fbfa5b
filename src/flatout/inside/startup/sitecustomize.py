"""The module that Python runs at its start if Flatout has put this folder first on PYTHONPATH.

In: the environment. If a variable of `_is_asked` is set, this module notes that it was loaded and waits for `torch` to
be imported. Until then only the light hooks of `failure.pre_torch_hooks` are installed, which report why a script fails
earlier. In a trial, which must not change the user's files, files are redirected from the start (20 ms). Then the
user's own `sitecustomize` runs. This module never raises an error, and its syntax works in old Pythons.
"""

import os
import sys

TYPE_CHECKING = False  # so that `typing` is not loaded before the script needs it
if TYPE_CHECKING:
    from typing import Any

_protocol: "Any" = None  # `flatout.inside.protocol`, if a variable of Flatout is set
_HERE = os.path.dirname(os.path.abspath(__file__))
_EARLY: "list[object]" = []


def _is_here(entry: str) -> bool:
    return os.path.realpath(entry or ".") == os.path.realpath(_HERE)


def _note(recording: str, event: str) -> None:
    """Add one line to the list of this host's Python processes; short appends to one file do not mix."""
    if not recording:
        return
    try:
        line = "%d %d %s\n" % (os.getpid(), os.getppid(), event)  # noqa: UP031 - old Pythons read this file too
        path = os.path.join(recording, _protocol.File.STATE, _protocol.File.PROCESSES.of(os.uname().nodename))
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except Exception:  # noqa: BLE001 - the parent reports a folder that cannot be written
        pass


class _WaitForTorch:
    """A finder that lets `torch` be imported as usual, and starts the recorder afterwards."""

    module_name = "torch"

    def __init__(self, recording: str) -> None:
        self.recording = recording
        self.is_looking = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.module_name or self.is_looking:
            return None
        self.is_looking = True
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
            if spec is not None and spec.loader is not None:
                self.start_after(spec.loader)
            return spec
        finally:
            self.is_looking = False

    def start_after(self, loader: object) -> None:
        """Wrap `exec_module` of this loader only; its class and all other modules stay unchanged."""
        run_module = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: object) -> None:
            finders: list[object] = sys.meta_path  # type: ignore[assignment]
            if self in finders:
                finders.remove(self)
            del loader.exec_module  # type: ignore[attr-defined]
            run_module(module)
            self.start(module)

        loader.exec_module = exec_module  # type: ignore[attr-defined]

    def start(self, module: object) -> None:
        _start_quietly(self.recording)


class _WaitForJax(_WaitForTorch):
    """The same for `jax`, whose own profiler records the job."""

    module_name = "jax"

    def start(self, module: object) -> None:
        try:
            if sys.version_info >= (3, 11):  # noqa: UP036 - the job may have an older Python than Flatout
                _import_inside("xla_profile").install(module)  # type: ignore[attr-defined]
                _import_inside("xla_steps").install(module)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - never the job's problem
            _note(self.recording, _protocol.ProcessEvent.FAILED)


class _WaitForSessions(_WaitForTorch):
    """The same for `onnxruntime`: it imports torch after it, if that is installed. The recorder needs it to work."""

    module_name = "onnxruntime"

    def start(self, module: object) -> None:
        try:
            import torch  # noqa: F401
        except Exception:  # noqa: BLE001 - the script itself does not need it
            return


def _start_quietly(recording: str) -> None:
    try:
        _start(recording)
    except Exception:  # noqa: BLE001 - never the job's problem
        _note(recording, _protocol.ProcessEvent.FAILED)


def _start(recording: str) -> None:
    """Import `flatout.inside` from next to this folder, whether or not Flatout is installed for this Python."""
    _note(recording, _protocol.ProcessEvent.TORCH)
    if sys.version_info < (3, 11):  # noqa: UP036 - the job may have an older Python than Flatout
        _note(recording, _protocol.ProcessEvent.OLD_PYTHON)
        return
    for early in _EARLY:
        early.remove()  # type: ignore[attr-defined]
    _import_inside("install").install()  # type: ignore[attr-defined]


def _note_failures_quietly(recording: str) -> None:
    try:
        folders = (_protocol.Variable.RECORDING, _protocol.Variable.HEARTBEAT)  # failures are noted in the first set
        for name in [name for name in folders if os.environ.get(name)][:1]:
            early = _import_inside("failure.pre_torch_hooks").PreTorchHooks(name)  # type: ignore[attr-defined]
            early.install()
            _EARLY.append(early)
    except Exception:  # noqa: BLE001 - never the job's problem
        _note(recording, _protocol.ProcessEvent.FAILED)


def _divert_quietly(recording: str) -> None:
    try:
        from pathlib import Path

        files = Path(recording) if recording else None
        _import_inside("overlay.redirect").redirect_files(files)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - tried again, and logged, once torch is there
        pass


def _import_inside(name: str) -> object:
    from importlib import import_module
    from types import ModuleType

    rooms = os.path.dirname(os.path.dirname(_HERE))
    installed = sys.modules.get("flatout")
    stand_in = ModuleType("flatout")
    stand_in.__path__ = [rooms]
    sys.modules["flatout"] = stand_in
    try:
        return import_module("flatout.inside." + name)
    finally:
        if installed is None:
            del sys.modules["flatout"]
        else:
            sys.modules["flatout"] = installed


def _run_own_sitecustomize() -> None:
    """Run the `sitecustomize` that Python would find without this folder; Python reports its errors as usual."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if not _is_here(entry)])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _read_protocol() -> "Any":
    """Read and return the protocol module; None if no variable of Flatout is set, or if it cannot be read."""
    if not any(name.startswith("FLATOUT_") for name in os.environ):
        return None
    try:
        return _import_inside("protocol")
    except Exception:  # noqa: BLE001 - never the job's problem
        return None


def _is_asked() -> bool:
    """Whether the environment variables request anything that is done in this process."""
    if _protocol is None:
        return False
    variable = _protocol.Variable
    asked = (
        *(variable.RECORDING, variable.PATCHES, variable.DIVERT, variable.SAFE_SAVE, variable.HEARTBEAT),
        *(variable.DATA_CACHE, variable.PACKED, variable.NCCL_TABLE, variable.COMPRESS, variable.XLA_TRIAL),
    )
    return any(os.environ.get(name) for name in asked)


_protocol = _read_protocol()
if _is_asked():
    _recording = os.environ.get(_protocol.Variable.RECORDING, "")
    _note(_recording, _protocol.ProcessEvent.PYTHON)
    if sys.implementation.name == "cpython":
        sys.meta_path.insert(0, _WaitForTorch(_recording))  # type: ignore[arg-type]
        if _recording or os.environ.get(_protocol.Variable.PATCHES):  # a heartbeat alone is not worth importing torch
            sys.meta_path.insert(0, _WaitForSessions(_recording))  # type: ignore[arg-type]
        if _recording or os.environ.get(_protocol.Variable.XLA_TRIAL):
            sys.meta_path.insert(0, _WaitForJax(_recording))  # type: ignore[arg-type]
        if sys.version_info >= (3, 11):  # noqa: UP036 - the job may have an older Python than Flatout
            _note_failures_quietly(_recording)
            if os.environ.get(_protocol.Variable.DIVERT):
                _divert_quietly(_recording)
# The script sees the same module path as without Flatout; its child processes find this folder through PYTHONPATH.
sys.path[:] = [_entry for _entry in sys.path if not _is_here(_entry)]
_run_own_sitecustomize()
