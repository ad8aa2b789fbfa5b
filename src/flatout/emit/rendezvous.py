"""Set the rendezvous of torchrun's agents on several nodes, replacing the user's, which names another job's host.

A job to be queued can name a host that is reachable from any node; `own_rendezvous` returns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flatout.change.launchers import calls, launch_value, launch_word, variable_of, with_launch_words
from flatout.records.tuning import HEAD_NODE, Tuning

PORT = 29500  # torch's own default
_BY_AGENTS = ("static", "c10d")  # backends for which the first agent is the meeting point
_RENDEZVOUS_FLAGS = ("--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id")
_REPLACED_FLAGS = ("--standalone", "--nnodes", "--node-rank", *_RENDEZVOUS_FLAGS)


def num_nodes(tuning: Tuning) -> int:
    """Return the command's `--nnodes` (the maximum of MIN:MAX), or else the number of nodes used for the tuning run."""
    asked = launch_word(tuning.command, "torchrun", "--nnodes") if calls(tuning.command, "torchrun") else None
    text = asked.rpartition(":")[2] if asked is not None else tuning.machine.get("num_hosts", "")
    return max(int(text), 1) if text.isdecimal() else 1


def needs_rendezvous(tuning: Tuning) -> bool:
    """Whether the command must say where its agents meet."""
    return num_nodes(tuning) > 1 and calls(tuning.command, "torchrun")


class Rendezvous(NamedTuple):
    word: str  # the argument of the command, or the variable
    host: str  # name or address of the host
    is_store: bool  # a separate service, not an agent of the job


def own_rendezvous(tuning: Tuning) -> Rendezvous | None:
    """Return the rendezvous that the command or a variable of torchrun sets; None if neither does, or for one node."""
    if not needs_rendezvous(tuning):
        return None
    backend = launch_value(tuning.command, "torchrun", "--rdzv-backend") or "static"
    for flag in ("--rdzv-endpoint", "--master-addr"):
        address = launch_value(tuning.command, "torchrun", flag)
        if not address or HEAD_NODE in address:
            continue
        is_in_command = launch_word(tuning.command, "torchrun", flag) is not None
        word = f"{flag} {address}" if is_in_command else f"{variable_of('torchrun', flag)}={address}"
        is_endpoint = flag == "--rdzv-endpoint"
        host = (address.rpartition(":")[0] or address) if is_endpoint else address
        return Rendezvous(word, host.strip("[]").lower(), is_store=is_endpoint and backend not in _BY_AGENTS)
    return None


def with_own_rendezvous(words: Sequence[str], num_nodes: int) -> tuple[str, ...]:
    """Return the user's command, with the number of nodes if it has none."""
    if launch_word(words, "torchrun", "--nnodes") is not None:
        return tuple(words)
    return with_launch_words(words, "torchrun", (f"--nnodes={num_nodes}",))


def with_variables(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command with the user's rendezvous variables as arguments, for jobs that do not inherit them."""
    added = []
    for flag in (*_RENDEZVOUS_FLAGS, "--rdzv-conf"):
        value = launch_value(words, "torchrun", flag)
        if value is not None and launch_word(words, "torchrun", flag) is None:
            added.append(f"{flag}={value}")
    return with_launch_words(words, "torchrun", added)


def is_static(words: Sequence[str]) -> bool:
    """Whether each agent needs a different node rank."""
    return (launch_value(words, "torchrun", "--rdzv-backend") or "static") == "static"


def with_rendezvous(words: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    return with_launch_words(words, "torchrun", added, dropped=_REPLACED_FLAGS)
