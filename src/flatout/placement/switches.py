"""Read which leaf switch each node is on, from Slurm's `topology.conf` or `scontrol show topology`.

In: the text, with lines such as `SwitchName=leaf1 Nodes=n[1-4]`, in which names of keys may have any case. Out: for
each node, the number of its leaf switch, in the order of the file. The upper switches (`Switches=`) are not read: all
links above the leaves count alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.errors import InputError
from flatout.input_files import read_text

_NAME = re.compile(r"\b(?:SwitchName|BlockName)=(\S+)", re.IGNORECASE)
_NODES = re.compile(r"\bNodes=(\S+)", re.IGNORECASE)
_SWITCHES = re.compile(r"\bSwitches=(\S+)", re.IGNORECASE)
_EXAMPLE = "it needs lines such as: SwitchName=leaf1 Nodes=n[1-4]"


def leaf_switches(path: Path, nodes: Sequence[str], expanded: Callable[[str], Sequence[str]]) -> tuple[int, ...]:
    """Return the number of each node's leaf switch. Raise InputError if a node is on none.

    `expanded` returns the hosts of a compact list.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"`{path}` cannot be read: {reason.lower()}") from error
    leaf_of: dict[str, int] = {}
    num_leaves = 0
    for line in text.splitlines():
        content = line.partition("#")[0]
        name, listed = _NAME.search(content), _NODES.search(content)
        is_upper = (found := _SWITCHES.search(content)) is not None and found[1].lower() != "(null)"
        if name is None or listed is None or is_upper:
            continue
        for node in _hosts(path, listed[1], expanded):
            leaf_of.setdefault(node, num_leaves)
        num_leaves += 1
    if not leaf_of:
        raise InputError(f"`{path}` names no leaf switch with nodes", hint=_EXAMPLE)
    missing = [node for node in nodes if node not in leaf_of]
    if missing:
        raise InputError(f"`{path}` has no leaf switch of `{missing[0]}`", hint=_EXAMPLE)
    return tuple(leaf_of[node] for node in nodes)


def _hosts(path: Path, text: str, expanded: Callable[[str], Sequence[str]]) -> Sequence[str]:
    try:
        return expanded(text)
    except ValueError as error:
        raise InputError(f"`{path}` cannot be read: {error}", hint=_EXAMPLE) from None
