"""Compare the ranks' tables for NCCL before there is a process group, and end all ranks if they differ.

In: FLATOUT_NCCL_TABLE, the table of the tuner plugin. Out: FLATOUT_NCCL_TABLE_COMPARED, the table's checksum, without
which the plugin changes nothing. Ranks that choose differently would wait for each other for ever, and NCCL compares
nothing. Each rank puts hashes of its table and plugin and the version of NCCL into the store in which the ranks meet;
rank 0 reads them and writes its verdict there. No rank waits longer than `LIMIT_S`.

Unlike the rest of `inside/`, this check ends a job: a table that is not the same everywhere must not be used, and the
user asked for it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from flatout.inside.protocol import PLUGIN_NAME, Variable

LIMIT_S = 60.0
HEARING_LIMIT_S = 5.0
_PREFIX = "flatout/nccl-table"
_EQUAL = "equal"
_NAMES = {"table": "tables for NCCL", "plugin": "tuner plugins", "nccl": "versions of NCCL"}


class UnequalTablesError(Exception):
    """The ranks cannot use their tables, for the reason in the message."""


def hook_equal_tables() -> Callable[[], None] | None:
    """Have the ranks compare their tables when they meet; return a function that removes the hook."""
    os.environ.pop(Variable.NCCL_TABLE_COMPARED, None)  # whatever another process has compared
    if not torch.distributed.is_available():
        return None
    module: Any = torch.distributed.distributed_c10d
    original = module._new_process_group_helper
    meetings = itertools.count(1)

    @wraps(original)
    def new_process_group(*args: Any, **kwargs: Any) -> Any:
        num_ranks, rank, ranks_of_group, backend, store = args[:5]
        is_default_group = ranks_of_group == [] and num_ranks > 0
        if is_default_group and str(backend) != "fake":
            _compare_or_exit(store, rank, num_ranks, next(meetings))
        return original(*args, **kwargs)

    module._new_process_group_helper = new_process_group

    def undo() -> None:
        if module._new_process_group_helper is new_process_group:
            module._new_process_group_helper = original

    return undo


def _compare_or_exit(store: Any, rank: int, num_ranks: int, meeting: int) -> None:
    try:
        content = _table(os.environ)
        compare(store, rank, num_ranks, facts_of(content, os.environ), meeting=meeting)
    except UnequalTablesError as error:
        raise SystemExit(f"flatout: {error}") from None
    except Exception as error:  # noqa: BLE001 - with tables that were not compared, the ranks could hang
        raise SystemExit(f"flatout: the ranks' tables for NCCL could not be compared: {error}") from None
    os.environ[Variable.NCCL_TABLE_COMPARED] = f"{zlib.crc32(content):08x}"


def _table(environment: Mapping[str, str]) -> bytes:
    path = environment[Variable.NCCL_TABLE]
    try:
        return Path(path).read_bytes()
    except OSError as error:
        # The other ranks wait until their limit, and then name this rank.
        raise UnequalTablesError(f"the table {path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def facts_of(table: bytes, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what must be equal on all ranks, as short texts."""
    return {
        "table": hashlib.sha256(table.replace(b"\r\n", b"\n")).hexdigest()[:12],
        "plugin": _plugin(environment.get("NCCL_TUNER_PLUGIN", "")),
        "nccl": _nccl_version(),
    }


def compare(
    store: Any, rank: int, num_ranks: int, facts: Mapping[str, str], limit_s: float = LIMIT_S, *, meeting: int
) -> None:
    """Return once rank 0 has found the facts of all ranks equal. Raises UnequalTablesError on every rank if not.

    `meeting` counts the groups that the ranks have made: keys of an earlier one may still be in the store.
    """
    prefix = f"{_PREFIX}/{meeting}"
    store.set(f"{prefix}/{rank}", json.dumps(facts))
    if rank == 0:
        verdict = _verdict(store, prefix, num_ranks, limit_s)
        store.set(f"{prefix}/verdict", verdict)
    else:
        answer = _read(store, f"{prefix}/verdict", 2 * limit_s)
        late = f"rank 0 has not compared the ranks' tables for NCCL within {2 * limit_s:.0f} s"
        verdict = late if answer is None else answer
    if verdict != _EQUAL:
        _let_all_hear(store, prefix, rank, num_ranks, min(limit_s, HEARING_LIMIT_S))
        raise UnequalTablesError(verdict)


def _let_all_hear(store: Any, prefix: str, rank: int, num_ranks: int, limit_s: float) -> None:
    """Have rank 0 wait until the others have read the verdict: the store usually ends with its process."""
    if rank != 0:
        store.set(f"{prefix}/heard/{rank}", "1")
        return
    with suppress(RuntimeError):
        store.wait([f"{prefix}/heard/{other}" for other in range(1, num_ranks)], timedelta(seconds=limit_s))


def _verdict(store: Any, prefix: str, num_ranks: int, limit_s: float) -> str:
    """Return `_EQUAL`, or a sentence that names the ranks that differ."""
    facts: list[dict[str, str]] = []
    for rank in range(num_ranks):
        text = _read(store, f"{prefix}/{rank}", limit_s)
        if text is None:
            return (
                f"rank {rank} reported no table for NCCL within {limit_s:.0f} s, but other ranks have one: give all"
                f" ranks the same table in {Variable.NCCL_TABLE}, and start them with flatout run"
            )
        facts.append(json.loads(text))
    for name, words in _NAMES.items():
        by_value: dict[str, list[int]] = {}
        for rank, of_rank in enumerate(facts):
            by_value.setdefault(of_rank[name], []).append(rank)
        if len(by_value) > 1:
            groups = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in by_value.items())
            return f"the ranks have different {words}, and would wait for each other for ever: {groups}"
    return _EQUAL


def _read(store: Any, key: str, limit_s: float) -> str | None:
    """Return the value of a key; None if no rank has set it within the limit."""
    try:
        store.wait([key], timedelta(seconds=limit_s))
    except RuntimeError:  # torch's DistStoreError is one
        return None
    return str(store.get(key).decode())


def _ranks(ranks: list[int]) -> str:
    """Describe ranks in ascending order: `rank 3`, `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(words)}"


def _plugin(path: str) -> str:
    """Return what stands for the plugin: the hash of its source if it is ours, otherwise that of its bytes."""
    if not path:
        return "none"
    ours = PLUGIN_NAME.part(os.path.basename(path))
    if ours is not None:
        return ours
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    except OSError:
        return path  # a name that NCCL looks up


def _nccl_version() -> str:
    if not torch.cuda.is_available():
        return "none"
    version: Any = torch.cuda.nccl.version()
    return ".".join(map(str, version))
