"""The serving side of warm starts: `python serve.py FD` imports torch and Flatout, and forks whatever is asked for.

In: requests of `ask.Server` over the socket FD. Out: for each the number of a process that runs the command, forked
from this one, as a child of the process that asked. It uses nothing of what it imports and starts no
thread, so that each fork begins with modules as their import left them. It ends when nobody can ask any more.

A fork that may start programs in turn (a launcher, a `flatout`) has a server of its own, forked from it before it runs
anything: a fork's children are as fresh as itself.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import inspect
import json
import os
import pkgutil
import re
import socket
import sys
import types
import weakref
from pathlib import Path
from typing import Any

_path = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
_root = Path(__file__).parents[2]
sys.path[:] = [str(_root / "src"), *_path, str(_root)]  # the Flatout beside these tests, whichever one is installed
from tests.warm import become  # noqa: E402

_MAX_FILES = 253
_MADV_COLLAPSE, _HUGE_PAGE = 25, 2 << 20
_SLOW = (
    "torch",
    "torch._dynamo",  # the first optimizer imports it
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.profiler",
    "torch.utils.data",
    "torch.utils.flop_counter",
    "encodings.idna",
)


def import_all() -> None:
    for name in _SLOW:
        importlib.import_module(name)
    _look_up_callers_without_their_source()
    import flatout

    for module in pkgutil.walk_packages(flatout.__path__, "flatout."):
        if not _is_for_others(module.name):
            importlib.import_module(module.name)
    # Once, for every command that will be forked.
    sys.modules["flatout.cli"].parser()
    sys.modules["flatout.catalog.failures"].known_failures()
    _take_nothing_apart_at_the_end()


def _take_nothing_apart_at_the_end() -> None:
    """At the end of a process, torch takes the lists of its operators apart, which takes half of a short fork's time.

    A fork ends with all of its memory (see `become`).
    """
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


def _look_up_callers_without_their_source() -> None:
    """torchrun's rendezvous asks 18 times for its callers' names, for each of which all modules are looked through."""
    rendezvous = sys.modules["torch.distributed.elastic.rendezvous.dynamic_rendezvous"]
    quick = types.ModuleType("inspect")
    vars(quick).update(vars(inspect), stack=_callers)
    rendezvous.inspect = quick  # type: ignore[attr-defined]


def _callers() -> list[types.SimpleNamespace]:
    """Return what `inspect.stack` does, but for the names of the functions alone."""
    callers = []
    frame = sys._getframe(1)
    while frame is not None:
        callers.append(types.SimpleNamespace(function=frame.f_code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return callers


def _import_inside(package: str) -> dict[str, types.ModuleType]:
    """Import what Flatout imports in a job's processes, and take it away again: in a fork it is found by `become`.

    No module of it does more at its import than to define what it has, except `become.OF_ITS_IMPORT`.
    """
    stand_in = sys.modules["flatout"] = types.ModuleType("flatout")  # as in a job, see `startup/sitecustomize.py`
    stand_in.__path__ = [package]
    for module in pkgutil.walk_packages([os.path.join(package, "inside")], "flatout.inside."):
        if not module.name.startswith("flatout.inside.startup"):
            importlib.import_module(module.name)
    modules = _modules("flatout")
    del modules["flatout"]
    noted = {name: key for name, module in modules.items() for key in vars(module) if key.startswith("_IMPORTED")}
    assert noted == {name: variable for name, (variable, _) in become.OF_ITS_IMPORT.items()}
    return modules


def _is_for_others(name: str) -> bool:
    """Whether a module belongs to the job's side, or imports torch and so must be imported together with it."""
    if name.startswith(("flatout.inside", "flatout.__main__")):
        return True
    file = Path(*name.split("."))
    source = Path(sys.modules["flatout"].__path__[0]).parent / file
    path = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    return bool(re.search(r"^(?:import|from) (?:torch|ray)\b", path.read_text(), re.MULTILINE))


def serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """In a forked process, what it is to become; in the server, None at its end."""
    while True:
        received = _receive(connection)
        if received is None:
            return None
        asked, files = received
        pid = _fork_child_of_asker()
        if pid == 0:
            connection.close()
            return asked, files
        for file in files:
            os.close(file)
        try:
            connection.sendall(pid.to_bytes(4, "big"))
        except OSError:
            return None


def _fork_child_of_asker() -> int:
    """Fork by way of a process that ends at once: who asked is the next one above that takes in orphans."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            return 0
        os.write(writer, pid.to_bytes(4, "big"))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        pid = int.from_bytes(file.read(), "big")
    os.waitpid(between, 0)
    return pid


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    files = array.array("i")
    room = socket.CMSG_SPACE(_MAX_FILES * files.itemsize)
    try:
        head, ancillary, _, _ = connection.recvmsg(4, room, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    data = connection.recv(size, socket.MSG_WAITALL)
    return json.loads(data.decode("utf-8", "surrogateescape")), list(files)


def _modules(*names: str) -> dict[str, types.ModuleType]:
    """Takes these packages away: whoever imports them finds them again by `become`."""
    heads = tuple(name + "." for name in names)
    taken = {name: module for name, module in sys.modules.items() if name in names or name.startswith(heads)}
    for name in taken:
        del sys.modules[name]
    return taken


def _use_huge_pages() -> None:
    """Gather the memory of what was imported into huge pages: a fork then takes 4 ms instead of 18 ms.

    A kernel without them, or before 6.1, leaves the memory as it was.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, access, _, _, _, *name = line.split(maxsplit=5)
        if access != "rw-p" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in area.split("-"))
        first = (begin + _HUGE_PAGE - 1) // _HUGE_PAGE * _HUGE_PAGE
        for address in range(first, end - _HUGE_PAGE + 1, _HUGE_PAGE):
            madvise(address, _HUGE_PAGE, _MADV_COLLAPSE)


def serve_all(connection: socket.socket, path: list[str]) -> become.Process:
    """Serve until all is done; returns in the forked processes."""
    import_all()
    flatout = _modules("flatout")
    inside = _import_inside(flatout["flatout"].__path__[0])
    kept = become.Kept(path=path, torch=_modules("torch", "functorch"), flatout=flatout, inside=inside)
    sys.path[:] = path
    gc.collect()
    gc.freeze()  # a fork need not look through these objects again and again
    _use_huge_pages()
    while True:
        received = serve(connection)
        if received is None:
            os._exit(0)
        process = become.Process(*received, kept)
        own_connection = process.begin()
        if own_connection is None:
            return process
        connection = own_connection  # this is the process's server


if __name__ == "__main__":
    serve_all(socket.socket(fileno=int(sys.argv[1])), _path).run()
