"""Let only one job at a time write to a folder: `lock.json` names the owner.

An owner on this machine is alive if its process is alive. An owner on another machine is alive if it renews the file,
which owners do every few seconds; the file is watched for long enough before the folder of a dead job is taken over. An
owner that has lost the lock, e.g. because it was paused for an hour, notices before it commits anything.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.checkpoint.problems import LockedError

NAME = "lock.json"
RENEW_S = 3.0
WATCH_S = 12.0
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class Lock:
    def __init__(self, folder: Path, watch_s: float = WATCH_S, *, name: str = NAME) -> None:
        """Take the lock. Raises LockedError if another job has it, and OSError if the folder cannot be written to.

        `name` is that of the file: a folder can hold the locks of several files.
        """
        self._path = folder / name
        self._me = {**_process(), "token": secrets.token_hex(8), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        while not self._create():
            owner = _read(self._path)
            if owner is None:  # the lock has just been removed
                continue
            if _is_alive(owner, self._path, watch_s):
                raise LockedError(
                    f"{folder} is written to by another job: process {owner.get('pid')} on {owner.get('host')}"
                    f" since {owner.get('since')}",
                    hint=f"use another folder, or end the other job; if it is certainly dead, remove {self._path}",
                )
            self._remove(owner)
        self._ended = threading.Event()
        threading.Thread(target=self._renew, name="flatout-lock", daemon=True).start()

    def is_held(self) -> bool:
        owner = _read(self._path)
        return owner is not None and owner.get("token") == self._me["token"]

    def hold(self) -> bool:
        """Return whether the lock is held; first take it again if it was removed, e.g. with its folder."""
        return self.is_held() or self._create()

    def release(self) -> None:
        self._ended.set()
        if self.is_held():
            with suppress(OSError):
                self._path.unlink()

    def _create(self) -> bool:
        """Create the lock and return whether it is ours. If hard links work, the file appears complete, as a link."""
        partial = self._path.with_name(f".{self._path.name}.{self._me['token']}")
        text = json.dumps(self._me) + "\n"
        try:
            try:
                partial.write_text(text)
            except OSError as error:
                if error.errno in _NO_SPACE and self._path.exists():  # removing the old lock would free space
                    return False
                raise
            os.link(partial, self._path)
        except FileExistsError:
            return self.is_held()  # a file server can make the link, lose its reply, and get the request again
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                with self._path.open("x") as file:
                    file.write(text)
            except FileExistsError:
                return False
        finally:
            with suppress(OSError):
                partial.unlink()
        return True

    def _remove(self, owner: dict[str, Any]) -> None:
        """Remove the lock of this dead owner; if another job has replaced it meanwhile, restore that job's lock."""
        aside = self._path.with_name(f".{self._path.name}.{self._me['token']}.old")
        with suppress(FileNotFoundError):
            os.rename(self._path, aside)
            if _read(aside) != owner:
                with suppress(OSError):
                    os.link(aside, self._path)
            aside.unlink()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with suppress(OSError):
                if self.is_held():
                    os.utime(self._path)


def _is_alive(owner: dict[str, Any], path: Path, watch_s: float) -> bool:
    here = _process()
    if all(owner.get(key) == here[key] for key in ("host", "boot", "namespace")):
        return _started(owner.get("pid")) == owner.get("started")
    seen = _renewed_ns(path)
    until = time.monotonic() + watch_s
    while time.monotonic() < until:
        time.sleep(min(0.5, watch_s))
        now = _renewed_ns(path)
        if now is None:
            return False
        if now != seen:
            return True
    return False


def _process() -> dict[str, Any]:
    """Return a unique identity of this process: machine, boot, container (PID namespace), PID and start time."""
    boot = namespace = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    pid = os.getpid()
    return {"host": os.uname().nodename, "boot": boot, "namespace": namespace, "pid": pid, "started": _started(pid)}


def _started(pid: object) -> int | None:
    """Return when the process started, in the kernel's ticks; None if no process has this PID, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _read(path: Path) -> dict[str, Any] | None:
    """Return the owner; None if there is no lock. An unreadable lock has an unknown owner."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait forever
            return {}
        owner = json.loads(path.read_text())
    except OSError:
        return None
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _renewed_ns(path: Path) -> int | None:
    try:
        # Opening asks the file server; a stat can be answered from a cache. Without O_NONBLOCK, a pipe would make it
        # wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)
