"""`python enter.py SPEC -- COMMAND...`: run a command in a mount namespace in which folders are overlaid.

In: SPEC, a JSON object: `folders`, each with its `path` and two empty folders `upper` and `work` of one file system;
`through`, folders below these that stay shared with the rest of the machine, such as caches; `needs_user`, whether a
user namespace is needed to be allowed to mount; `variable`, in which the command finds the folders with their devices;
`refusal`, a file. Out: the command runs in the place of this process,
with the same user, group, devices, network and processes as before. All that it and its children write in a folder
goes to the `upper` of that folder, whatever writes it. If the kernel refuses, the reason is written to `refusal`, and
the command is not run. Without a command, the program only tries.

This file is run by its path and imports only the standard library, so that a trial starts fast.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
REFUSED = 125  # the exit code if the kernel refuses
NOT_FOUND = 127  # the exit code of a shell if the command is not found
_libc = ctypes.CDLL(None, use_errno=True)


class OverlayRefusedError(Exception):
    """The kernel does not allow the overlay."""


def main(arguments: list[str]) -> int:
    spec: dict[str, Any] = json.loads(arguments[0])
    command = arguments[2:]
    try:
        _enter(spec)
        devices = {folder["path"]: os.stat(folder["path"]).st_dev for folder in spec["folders"]}
        if not command:
            _try_writing(spec)
            return 0
    except (OverlayRefusedError, OSError) as error:
        with open(spec["refusal"], "w", encoding="utf-8") as file:
            file.write(str(error))
        return REFUSED
    os.environ[spec["variable"]] = json.dumps({"host": os.uname().nodename, "folders": devices})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"flatout: the command `{command[0]}` cannot be started: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


def _enter(spec: dict[str, Any]) -> None:
    working_folder = os.getcwd()
    _unshare(needs_user=spec["needs_user"])
    # Mounts of the machine still arrive here, for automounted homes; ours stay here.
    _mount(None, "/", None, _MS_REC | _MS_SLAVE, None, "a mount namespace")
    # Everything is opened now: once a folder is overlaid, the paths in it lead to the overlay. A descriptor from before
    # would lead to the former namespace.
    shared = {path: _opened(path) for path in spec["through"]}
    layers = [
        {name: f"/proc/self/fd/{_opened(folder[name])}" for name in ("path", "upper", "work")}
        for folder in spec["folders"]
    ]
    # Without `redirect_dir`, which an unprivileged user may not set, renaming a folder of the user's is refused as
    # between two file systems: `mv` then copies, and so do our hooks in Python.
    more = "userxattr" if spec["needs_user"] else "redirect_dir=on"
    for folder, layer in zip(spec["folders"], layers, strict=True):
        options = f"lowerdir={layer['path']},upperdir={layer['upper']},workdir={layer['work']},{more}"
        _mount("overlay", folder["path"], "overlay", 0, options, f"an overlay of {folder['path']}")
    for path, descriptor in shared.items():
        _mount(f"/proc/self/fd/{descriptor}", path, None, _MS_BIND | _MS_REC, None, f"sharing {path}")
    os.chdir(working_folder)  # so far it is the folder below the overlay


def _opened(folder: str) -> int:
    """Return a descriptor that leads to the folder itself; it is closed when the command begins."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY)


def _unshare(*, needs_user: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if needs_user else 0)):
        raise _refused("user namespaces" if needs_user else "mount namespaces")
    if not needs_user:
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None, what: str) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        raise _refused(what)


def _refused(what: str) -> OverlayRefusedError:
    return OverlayRefusedError(f"the kernel refuses {what}: {os.strerror(ctypes.get_errno()).lower()}")


def _try_writing(spec: dict[str, Any]) -> None:
    """Create a file in each folder, and see that it is in the upper folder."""
    name = f".flatout-{os.getpid()}"
    for folder in spec["folders"]:
        with open(os.path.join(folder["path"], name), "x", encoding="ascii"):
            pass
        os.rename(os.path.join(folder["path"], name), os.path.join(folder["path"], name + "-renamed"))
        if name + "-renamed" not in os.listdir(folder["upper"]):
            raise OverlayRefusedError(f"the overlay of {folder['path']} does not keep new files apart")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
