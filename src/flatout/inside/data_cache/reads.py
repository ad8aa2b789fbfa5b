"""Let Python's `open` read the copy of a file where there is one.

In: calls of `open` for reading, with a path below the sources of the cache. Out: a file object that has the path which
the script asked for as its name, and reads the copy. Everything else is left to Python's own `open`, and so is each
read for which the cache fails. Programs and compiled libraries that open files themselves do not use the cache.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from flatout.inside.data_cache.store import CacheStore
from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.log import guarded
from flatout.inside.protocol import CACHE_COUNTS, CACHE_REPORT_INTERVAL_S, Variable, partial_name, process_name

_READING = {"rb", "br", "r", "rt", "tr"}


class CachedReads:
    """The reads of this process. A forked child counts its own."""

    def __init__(self, folder: Path, store: CacheStore) -> None:
        self._folder = folder
        self.store = store
        self._pid = os.getpid()
        self._written_at = 0.0

    def opener_of(self, file: Any) -> Callable[[str, int], int] | None:
        """Return what opens the copy of a file; None if the file itself is to be read."""
        try:
            path = os.path.abspath(os.fsdecode(os.fspath(file)))
            if not self.store.covers(path):
                return None
            self._look_at_process()
            copy = self.store.copy_of(path)
            if time.monotonic() - self._written_at >= CACHE_REPORT_INTERVAL_S:
                self.write()
        except (OSError, ValueError):  # as if there were no cache: the script's own `open` says what is wrong
            return None
        if copy is None:
            return None

        def open_copy(name: str, flags: int) -> int:
            descriptor = copy.open(flags)
            return descriptor if descriptor is not None else os.open(name, flags)

        return open_copy

    def _look_at_process(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            store = self.store
            store.num_hits = store.num_misses = store.num_admitted = store.hit_bytes = store.missed_bytes = 0
            EXIT_HANDLERS.at_exit(self.write)

    @guarded
    def write(self) -> None:
        """Write this process's counts, if it has read anything."""
        self._written_at = time.monotonic()
        store = self.store
        if self._pid != os.getpid() or not store.num_hits + store.num_misses:
            return
        counts = {
            "num_hits": store.num_hits,
            "num_misses": store.num_misses,
            "num_admitted": store.num_admitted,
            "hit_bytes": store.hit_bytes,
            "missed_bytes": store.missed_bytes,
        }
        path = self._folder / CACHE_COUNTS / f"{process_name(os.uname().nodename, self._pid)}.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        partial = path.with_name(partial_name(path.name))
        partial.write_text(json.dumps(counts), encoding="utf-8")
        partial.replace(path)


def hook_reads() -> Callable[[], None] | None:
    """Read from the cache that FLATOUT_DATA_CACHE names; return a function that removes the hooks, if there are any."""
    setting = os.environ.get(Variable.DATA_CACHE)
    if not setting:
        return None
    content = json.loads(setting)
    folder = Path(content["folder"])
    reads = CachedReads(folder, CacheStore(folder, int(content["max_bytes"]), tuple(content["sources"])))
    EXIT_HANDLERS.at_exit(reads.write)
    originals = [(module, module.open) for module in (builtins, io)]
    for module, original in originals:
        module.open = _cached_open(reads, original)  # type: ignore[attr-defined]

    def undo() -> None:
        reads.write()
        for module, original in originals:
            module.open = original  # type: ignore[attr-defined]

    return undo


def _cached_open(reads: CachedReads, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode not in _READING or "opener" in kwargs or len(args) > _OPENER or isinstance(file, int):
            return original(file, mode, *args, **kwargs)
        opener = reads.opener_of(file)
        if opener is None:
            return original(file, mode, *args, **kwargs)
        return original(file, mode, *args, opener=opener, **kwargs)

    return open_file


_OPENER = 5  # the place of `opener` among the arguments after the mode: buffering, encoding, errors, newline, closefd
