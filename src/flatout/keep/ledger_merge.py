"""Add up the ledgers of several nodes or jobs: files and folders -> `Totals`.

A job on several nodes has a ledger on each, and all of them report the same attempts, failures and steps: for these,
the maximum over the nodes counts. Devices and their time are summed. Ledgers of different jobs are summed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.keep.ledger import HeldError, LedgerFile, Totals, read

_COUNTS = ("num_runs", "num_attempts", "num_hangs", "num_failures", "num_not_the_jobs", "num_unfinished", "num_steps")


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
    jobs: dict[str, dict[str, list[Totals]]] = {}
    for file in [file for path in paths for file in _files(path)]:
        job, node = _whose(file)
        jobs.setdefault(job, {}).setdefault(node, []).append(read(file))
    of_jobs = []
    for nodes in jobs.values():
        of_nodes = [_added(of_node, sum, max) for of_node in nodes.values()]
        of_jobs.append(_added(of_nodes, max, sum, num_nodes=len(of_nodes)))
    return _added(of_jobs, sum, max, num_nodes=max(one.num_nodes for one in of_jobs))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise InputError(f"{path} has no ledger", hint="a ledger is what `flatout run --ledger FILE` writes")
    return found


def _whose(path: Path) -> tuple[str, str]:
    """Return the job and the node of a ledger's first run. Ledgers that cannot be read are reported by `read`."""
    try:
        with path.open("rb") as file:
            line = json.loads(file.readline())
        return str(line.get("job") or line.get("command")), str(line.get("node"))
    except (OSError, ValueError, AttributeError):
        return "", ""


def _added(
    all_of: Sequence[Totals],
    counts: Callable[[Sequence[int]], int],
    devices: Callable[[Sequence[int]], int],
    *,
    num_nodes: int = 1,
) -> Totals:
    if len(all_of) == 1 and num_nodes == 1:
        return all_of[0]
    known = [one.num_devices for one in all_of if one.num_devices is not None]
    names = [name for one in all_of for name in one.ns]
    return msgspec.structs.replace(
        all_of[-1],
        **{name: counts([getattr(one, name) for one in all_of]) for name in _COUNTS},
        num_bad_lines=sum(one.num_bad_lines for one in all_of),
        num_devices=devices(known) if known else None,
        ns={name: sum(one.ns.get(name, 0) for one in all_of) for name in dict.fromkeys(names)},
        failures=tuple(text for one in all_of for text in one.failures),
        steps_ns=sum(one.steps_ns for one in all_of),
        known_ns=_known(all_of),
        # Totals without steps come first, so that their reason does not replace those of the others.
        not_known={
            name: why for one in sorted(all_of, key=lambda one: one.steps_ns > 0) for name, why in one.not_known.items()
        },
        away_s=float(sum(one.away_s for one in all_of) if counts is sum else max(one.away_s for one in all_of)),
        num_nodes=num_nodes,
        gpu=next((one.gpu for one in reversed(all_of) if one.gpu is not None), None),
        saving=next((one.saving for one in reversed(all_of) if one.saving is not None), None),
    )


def _known(all_of: Sequence[Totals]) -> dict[str, dict[str, int]]:
    known: dict[str, dict[str, int]] = {}
    for one in all_of:
        for name, bases in one.known_ns.items():
            for basis, ns in bases.items():
                of_name = known.setdefault(name, {})
                of_name[basis] = of_name.get(basis, 0) + ns
    return known
