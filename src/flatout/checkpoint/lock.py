"""One job at a time writes to a folder: `lock.json`, which says whose it is.

An owner on this machine is alive if its process is. One on another machine is alive if it renews the file, which
owners do every few seconds; that is watched for long enough before the folder of a dead job is taken over. Whoever has
lost the lock, paused for an hour say, finds out before it commits anything.
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
    def __init__(self, folder: Path, watch_s: float = WATCH_S) -> None:
        """Take the lock; raises LockedError if another job has it, OSError if the folder cannot be written to."""
        self._path = folder / NAME
        self._me = {**_process(), "token": secrets.token_hex(8), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        while not self._create():
            owner = _read(self._path)
            if owner is None:  # just gone
                continue
            if _is_alive(owner, self._path, watch_s):
                raise LockedError(
                    f"{folder} is written to by another job: process {owner.get('pid')} on {owner.get('host')}"
                    f" since {owner.get('since')}",
                    hint=f"give this job another folder, or end the other; if that is surely dead, remove {self._path}",
                )
            self._remove(owner)
        self._ended = threading.Event()
        threading.Thread(target=self._renew, name="flatout-lock", daemon=True).start()

    def is_held(self) -> bool:
        owner = _read(self._path)
        return owner is not None and owner.get("token") == self._me["token"]

    def hold(self) -> bool:
        """True if the lock is held; a lock that was removed, e.g. with its folder, is taken again."""
        return self.is_held() or self._create()

    def release(self) -> None:
        self._ended.set()
        if self.is_held():
            with suppress(OSError):
                self._path.unlink()

    def _create(self) -> bool:
        """Whether it is ours now. The file appears whole, as a link to one of another name, where links can be made."""
        partial = self._path.with_name(f".{NAME}.{self._me['token']}")
        text = json.dumps(self._me) + "\n"
        try:
            try:
                partial.write_text(text)
            except OSError as error:
                if error.errno in _NO_SPACE and self._path.exists():  # whose removal would make some
                    return False
                raise
            os.link(partial, self._path)
        except FileExistsError:
            return self.is_held()  # a file server may link, lose its answer, and be asked again
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
        """Remove the lock of this dead owner; if another job was quicker, its lock is restored."""
        aside = self._path.with_name(f".{NAME}.{self._me['token']}.old")
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
    """This process, so that no other one is taken for it: on this machine, since this boot, in this container."""
    boot = namespace = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    pid = os.getpid()
    return {"host": os.uname().nodename, "boot": boot, "namespace": namespace, "pid": pid, "started": _started(pid)}


def _started(pid: object) -> int | None:
    """When the process started, in the kernel's ticks; None if there is none of this number (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _read(path: Path) -> dict[str, Any] | None:
    """Return the owner; None if there is no lock. An unreadable lock has an unknown owner."""
    try:
        owner = json.loads(path.read_text())
    except OSError:
        return None
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _renewed_ns(path: Path) -> int | None:
    try:
        with path.open() as file:  # opening asks the file server, while a stat can be answered from a cache
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None
