"""Add up the ledgers of several nodes or jobs: files and folders -> `Totals`.

A job on several nodes has a ledger on each, and all of them report the same attempts, failures and steps: for these,
the maximum over the nodes counts. Devices and their time are summed. Ledgers of different jobs are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.keep.ledger import HeldError, LedgerFile, Totals, read, read_by_owner

_COUNTS = ("num_runs", "num_attempts", "num_hangs", "num_failures", "num_not_the_jobs", "num_unfinished", "num_steps")
_SUMS = ("num_bad_lines", "steps_ns")
_LAST = ("gpu", "saving", "first_bad_line")  # the last one that is not None counts


def own_ledger(path: Path, node: str) -> Path:
    """Return the path of the node's ledger. In a folder each node has its own: appends of two nodes can be lost."""
    return path / f"ledger-{node}.jsonl" if path.is_dir() else path


def open_own(path: Path, node: str, *, clean: Callable[[str], str] = lambda text: text) -> tuple[LedgerFile, str]:
    """Return the open ledger, and the name of this node in it.

    If two runs share a host, as two torchrun agents with some GPUs each do, the second counts as a separate node, under
    a name that no host has. Raises HeldError if another run holds a ledger that was given as a file.
    """
    if not path.is_dir():
        return LedgerFile(path, clean=clean), node
    for number in count(1):
        name = node if number == 1 else f"{node}+{number}"
        with suppress(HeldError):
            return LedgerFile(own_ledger(path, name), clean=clean), name
    raise AssertionError


def read_all(paths: Sequence[Path]) -> Totals:
    files = [file for path in paths for file in _files(path)]
    if len(files) == 1:
        return read(files[0])
    jobs: dict[str, dict[str, list[Totals]]] = {}
    for file in files:
        for owner, totals in read_by_owner(file).items():
            jobs.setdefault(owner.job, {}).setdefault(owner.node, []).append(totals)
    of_jobs = []
    for nodes in jobs.values():
        of_nodes = [_added(of_node, sum, max) for of_node in nodes.values()]
        of_jobs.append(_added(of_nodes, max, sum, num_nodes=len(of_nodes)))
    return _added(of_jobs, sum, max, num_nodes=max(totals.num_nodes for totals in of_jobs))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    ledgers = sorted(path.glob("*.jsonl"))
    if not ledgers:
        raise InputError(f"{path} has no ledger", hint="pass a ledger that `flatout run --ledger FILE` wrote")
    return ledgers


def _added(
    all_of: Sequence[Totals],
    counts: Callable[[Sequence[int]], int],
    devices: Callable[[Sequence[int]], int],
    *,
    num_nodes: int = 1,
) -> Totals:
    if len(all_of) == 1 and num_nodes == 1:
        return all_of[0]
    merged: dict[str, Any] = {"num_nodes": num_nodes, "known_ns": _known_ns(all_of), "not_known": _not_known(all_of)}
    for field in _COUNTS:
        merged[field] = counts(_each(all_of, field))
    for field in _SUMS:
        merged[field] = sum(_each(all_of, field))
    for field in _LAST:
        merged[field] = next((value for value in reversed(_each(all_of, field)) if value is not None), None)
    num_devices = [number for number in _each(all_of, "num_devices") if number is not None]
    merged["num_devices"] = devices(num_devices) if num_devices else None
    merged["away_s"] = float(counts(_each(all_of, "away_s")))
    merged["failures"] = tuple(chain.from_iterable(_each(all_of, "failures")))
    ns: Counter[str] = Counter()
    for totals in all_of:
        ns.update(totals.ns)
    return msgspec.structs.replace(all_of[-1], ns=dict(ns), **merged)


def _each(all_of: Sequence[Totals], field: str) -> list[Any]:
    return [getattr(totals, field) for totals in all_of]


def _known_ns(all_of: Sequence[Totals]) -> dict[str, dict[str, int]]:
    known_ns: dict[str, Counter[str]] = {}
    for totals in all_of:
        for name, by_basis in totals.known_ns.items():
            known_ns.setdefault(name, Counter()).update(by_basis)
    return {name: dict(by_basis) for name, by_basis in known_ns.items()}


def _not_known(all_of: Sequence[Totals]) -> dict[str, str]:
    # Totals without steps come first, so that their reason does not replace those of the others.
    reasons: dict[str, str] = {}
    for totals in sorted(all_of, key=lambda totals: totals.steps_ns > 0):
        reasons |= totals.not_known
    return reasons
