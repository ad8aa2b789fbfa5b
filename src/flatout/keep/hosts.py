"""Exclude a failed host through the user's launcher: command and environment -> the next command.

torchrun's elastic agents (`--nnodes=2:4`) continue without a host that does not come back. In a Slurm allocation with
more nodes than `srun` requests, `srun --exclude` starts the job on the others. Nothing else is tried: Flatout does not
implement a rendezvous itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath


def goes_on_without_host(nnodes: str | None) -> bool:
    """Whether torchrun was given a range of nodes, so that the agents on other hosts continue without this host's."""
    low, _, high = (nnodes or "").partition(":")
    return low.isdecimal() and high.isdecimal() and int(low) < int(high)


def least_nodes(nnodes: str | None) -> int | None:
    """Return the number of nodes that an elastic job needs; None if torchrun was given no range."""
    return int((nnodes or "").partition(":")[0]) if goes_on_without_host(nnodes) else None


def num_nodes(words: Sequence[str], nnodes: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of nodes in the launcher's arguments; 1 if they have none. `nnodes` is torchrun's option."""
    names = [PurePath(word).name for word in words]
    if "srun" in names:
        asked = _option(words, "--nodes") or _option(words, "-N") or environment.get("SLURM_JOB_NUM_NODES") or ""
    else:
        asked = nnodes or ""
    most = re.split("[:-]", asked)[-1]
    return max(int(most), 1) if most.isdecimal() else 1


def without_host(
    words: Sequence[str], host: str, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...] | None:
    """Return the same command on other nodes of the allocation; None if no node is spare."""
    place = next((place for place, word in enumerate(words) if PurePath(word).name == "srun"), None)
    if place is None:
        return None
    allocated = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or ""
    asked = _option(words, "--nodes") or _option(words, "-N") or ""
    excluded = {name for name in (_option(words, "--exclude") or "").split(",") if name} | {host}
    if not allocated.isdecimal() or not asked.isdecimal() or int(allocated) - len(excluded) < int(asked):
        return None
    kept = [word for word in words[place + 1 :] if not word.startswith("--exclude=")]
    return (*words[: place + 1], f"--exclude={','.join(sorted(excluded))}", *kept)


def _option(words: Sequence[str], name: str) -> str | None:
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if not name.startswith("--") and (short := re.fullmatch(rf"{name}(\d+)", word)):
            return short[1]
    return None
