"""What a process forked by `serve.py` does to be as if it had been started by `exec`, and then to run its program."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib.machinery
import importlib.util
import io
import os
import resource
import runpy
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType, TracebackType
from typing import Any

from tests.warm.ask import Server, WarmStarts
from tests.warm.node import place_of

_OURS = (__file__, os.path.join(os.path.dirname(__file__), "serve.py"))
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_OPTIONS = ("-B", "-P", "-u")
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_excepthook = sys.__excepthook__
_kept_alive: list[object] = []


@dataclass(frozen=True)
class Kept:
    """What a server has imported, and Python's own search path."""

    path: list[str]
    torch: dict[str, ModuleType]
    flatout: dict[str, ModuleType]
    inside: dict[str, ModuleType]  # Flatout's modules in the processes of a job


class _TorchIsThere:
    """Finds torch, and runs none of it again; whoever waits for its import (Flatout's recorder) sees one."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "torch":
            return None
        module = self._modules["torch"]
        return importlib.util.spec_from_file_location(
            "torch", module.__file__, loader=self, submodule_search_locations=list(module.__path__)
        )

    def create_module(self, spec: object) -> ModuleType:
        return self._modules["torch"]

    def exec_module(self, module: ModuleType) -> None:
        for name, each in self._modules.items():
            sys.modules.setdefault(name, each)


# What modules note at their import, which in a fork is not the server's.
OF_ITS_IMPORT: dict[str, tuple[str, Callable[[], float]]] = {
    "flatout.inside.phases.stop": ("_IMPORTED_S", time.monotonic),
    "flatout.inside.recording.attempt": ("_IMPORTED_NS", time.time_ns),
}


class _InsideIsThere:
    """Finds Flatout's modules of a job's processes where the job would find the same files."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> object:
        module = self._modules.get(name)
        if module is None or path is None or module.__spec__ is None:
            return None
        folders = module.__spec__.submodule_search_locations
        folder = os.path.dirname(folders[0] if folders else str(module.__file__))
        if list(path) != [folder]:
            return None
        return importlib.util.spec_from_file_location(
            name, module.__file__, loader=self, submodule_search_locations=folders
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has run."""


class Process:
    def __init__(self, asked: dict[str, Any], files: Sequence[int], kept: Kept) -> None:
        self._asked = asked
        self._kept = kept
        self._words: list[str] = asked["words"]
        self._variables: dict[str, str] = asked["variables"]
        _kept_alive.append(self)  # at the end, what the server keeps is not taken apart: half of a short fork's time
        self._place_files(dict(zip(asked["files"], files, strict=True)))

    def begin(self) -> socket.socket | None:
        """In this process's own server, what to serve; in the process None."""
        asked = self._asked
        if asked["session"]:
            os.setsid()
        else:
            group = asked["process_group"]
            os.setpgid(0, asked["group"] if group < 0 else group)
        for number, soft, hard in asked["limits"]:
            if resource.getrlimit(number) != (soft, hard):
                resource.setrlimit(number, (soft, hard))
        if os.sched_getaffinity(0) != set(asked["affinity"]):
            os.sched_setaffinity(0, asked["affinity"])
        os.umask(asked["umask"])
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(self._variables)
        for number in asked["ignored"]:
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN)
        while os.getppid() != asked["parent"] and os.path.exists(f"/proc/{asked['parent']}"):
            time.sleep(0.0005)
        if asked["node"] is not None:
            place_of(asked["node"])()
        if asked["overlay"]:
            _enter_overlay(asked["overlay"])
            self._variables = dict(os.environ)
        _be_seen_as(self._words, [f"{name}={value}" for name, value in self._variables.items()])
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["mask"])
        program = [word for word in self._words[1:] if word not in _OPTIONS]
        is_flatout = program[:2] == ["-m", "flatout"]
        if "LOCAL_RANK" in self._variables and not is_flatout:  # a rank starts no programs, as a rule
            return None
        return self._start_server()

    def _start_server(self) -> socket.socket | None:
        """Fork a server from this process. In the server, return its socket, with which `main` calls `serve`."""
        mine, its = socket.socketpair()
        if os.fork() == 0:
            mine.close()
            null = os.open(os.devnull, os.O_RDWR)
            for number in _open_files():
                if number not in (null, its.fileno()):
                    os.close(number)
            _be_seen_as(["warm-server"], [])
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
            return its
        its.close()
        WarmStarts(Server(mine)).put_in()
        return None

    def _place_files(self, files: dict[int, int]) -> None:
        """The files under their numbers, and no others."""
        free = max([2, *files]) + 1
        copies = {number: fcntl.fcntl(file, fcntl.F_DUPFD, free) for number, file in files.items()}
        for number in _open_files():
            if number not in copies.values():
                os.close(number)
        for number, copy in copies.items():
            os.dup2(copy, number)
            os.close(copy)

    def run(self) -> None:
        """Run the program; what it raises is the interpreter's to handle, as ever."""
        gc.freeze()
        options = []
        words = self._words[1:]
        while words[0] in _OPTIONS:
            options.append(words.pop(0))
        is_unbuffered = "-u" in options or bool(self._variables.get("PYTHONUNBUFFERED"))
        _open_streams(is_unbuffered)
        sys.orig_argv[:] = self._words
        more = self._variables.get("PYTHONPATH", "")
        sys.path[:] = [*(os.path.abspath(entry) for entry in more.split(os.pathsep) if more), *self._kept.path]
        sys.meta_path.insert(0, _TorchIsThere(self._kept.torch))  # type: ignore[arg-type]
        _use_threads(self._variables, self._kept.torch["torch"])
        is_module_of_flatout = words[0] == "-m" and words[1].partition(".")[0] == "flatout"
        if is_module_of_flatout or words[0].endswith("/bin/flatout"):
            sys.modules.update(self._kept.flatout)
        else:
            for name, (variable, value) in OF_ITS_IMPORT.items():
                setattr(self._kept.inside[name], variable, value())
            sys.meta_path.insert(0, _InsideIsThere(self._kept.inside))  # type: ignore[arg-type]
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__builtins__ = __builtins__  # type: ignore[attr-defined]
        for name in ("tests.warm.become", "tests.warm.ask", "tests.warm.node", "tests.warm", "tests", "sitecustomize"):
            sys.modules.pop(name, None)
        sys.excepthook = sys.__excepthook__ = _print_without_our_frames
        try:
            _import_sitecustomize()
            self._run_program(words, main, is_path_safe="-P" in options)
        except SystemExit as error:
            _end.code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
            raise
        except KeyboardInterrupt:
            _end.code = -signal.SIGINT
            raise
        except BaseException:
            _end.code = 1
            raise

    def _run_program(self, words: list[str], main: ModuleType, *, is_path_safe: bool) -> None:
        first = words[0]
        if first == "-m":
            sys.argv[:] = ["-m", *words[2:]]
            if not is_path_safe:
                sys.path.insert(0, os.getcwd())
            _forget(words[1], self._kept.torch)
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        elif first == "-c":
            sys.argv[:] = ["-c", *words[2:]]
            sys.path.insert(0, "")
            main.__spec__ = None
            _execute(compile(words[1], "<string>", "exec"), main)
        else:
            sys.argv[:] = words
            sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
            main.__file__ = first
            main.__spec__ = None
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", first)
            with open(first, "rb") as file:
                source = file.read()
            _execute(compile(source, first, "exec"), main)


class _Entered(BaseException):
    """The folders are overlaid, and the command could be executed."""


def _enter_overlay(words: Sequence[str]) -> None:
    """Run the program that overlays folders for a command, up to the command; leave as it does if it is refused."""

    def entered(_file: str, _words: Sequence[str]) -> None:
        raise _Entered

    files = _open_files()
    execute, os.execvp = os.execvp, entered  # type: ignore[assignment]
    try:
        code = runpy.run_path(words[0])["main"]([*words[1:], "the command"])
    except _Entered:
        for number in set(_open_files()) - set(files):  # an execution would have closed them
            os.close(number)
    else:
        os._exit(code)
    finally:
        os.execvp = execute


def _forget(module: str, stored: dict[str, ModuleType]) -> None:
    """It is about to be run as the program."""
    for modules in (stored, sys.modules):
        modules.pop(module, None)
    parent, _, name = module.rpartition(".")
    if parent in stored:
        vars(stored[parent]).pop(name, None)


def _execute(code: CodeType, main: ModuleType) -> None:
    exec(code, vars(main))


def _open_files() -> list[int]:
    return [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_streams(is_unbuffered: bool) -> None:
    """Python's standard streams, anew: what the server's had read or not yet written is not this process's."""
    _kept_alive.extend((sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__))
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = None
        if _is_open(number):
            buffering = 0 if is_unbuffered and mode == "w" else -1
            buffer = open(number, mode + "b", buffering=buffering, closefd=False)  # noqa: SIM115
            _kept_alive.append(buffer)
            stream = io.TextIOWrapper(
                buffer,
                encoding="utf-8",
                errors="backslashreplace" if name == "stderr" else "strict",
                line_buffering=name == "stderr" or (mode == "w" and os.isatty(number)),
                write_through=is_unbuffered and mode == "w",
            )
            stream.mode = mode  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _use_threads(variables: dict[str, str], torch: ModuleType) -> None:
    """As many as torch's libraries would have counted at their start; none has started yet."""
    asked = variables.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(asked) if asked.isdecimal() else len(os.sched_getaffinity(0)))


def _import_sitecustomize() -> None:
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    except Exception:  # noqa: BLE001 - as `site` does
        traceback.print_exc()


def _print_without_our_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    _excepthook(kind, error.with_traceback(trace), trace)


class _End:
    """The process's, after all else that is done at it: nothing is taken apart, which takes long."""

    def __init__(self) -> None:
        self.code = 0
        atexit.register(self._leave)

    def _leave(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except Exception:  # noqa: BLE001 - as Python does
                self.code = self.code or 120
        if self.code < 0:
            signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
        os._exit(self.code)


_end = _End()  # before anything else is registered with `atexit`, so it comes after all of it


def _be_seen_as(words: Sequence[str], variables: Sequence[str]) -> None:
    """Let /proc show this command line and this environment, by which Flatout knows processes."""
    ends = []
    for texts in (words, variables):
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)
        area = ctypes.create_string_buffer(data, len(data) + 1)
        _kept_alive.append(area)
        ends += [ctypes.addressof(area), ctypes.addressof(area) + len(data)]
    stat = _stat()
    end_of_heap = ctypes.CDLL(None).sbrk
    end_of_heap.restype, end_of_heap.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    code, data_of_program = (stat[26], stat[27]), (stat[45], stat[46])
    heap, stack = (stat[47], end_of_heap(0)), stat[28]
    layout = struct.pack("=12QIi", *code, *data_of_program, *heap, stack, *ends, 0, 0, -1)
    if _prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.c_char_p(layout), ctypes.c_ulong(len(layout)), 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel lets no process say what it is")


def _stat() -> dict[int, int]:
    """The fields of /proc/self/stat by their numbers in its manual page, from the fourth on."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()[1:]
    return dict(enumerate(map(int, fields), 4))
