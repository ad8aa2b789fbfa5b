"""Where torchrun's agents of several nodes meet: words in place of the user's own, whose host was another's.

What is to be queued may name a place that is there whichever nodes it gets; `own_meeting` tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flatout.change.launchers import calls, launch_value, launch_word, variable_of, with_launch_words
from flatout.records.tuning import HEAD_NODE, Tuning

PORT = 29500  # torch's own default
_BY_AGENTS = ("static", "c10d")  # the first agent is where the others meet
_OF_MEETING = ("--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id")
_OWN = ("--standalone", "--nnodes", "--node-rank", *_OF_MEETING)


def num_nodes(tuning: Tuning) -> int:
    """As the command says by `--nnodes` (of MIN:MAX the most), else as many as it was measured on."""
    asked = launch_word(tuning.command, "torchrun", "--nnodes") if calls(tuning.command, "torchrun") else None
    text = asked.rpartition(":")[2] if asked is not None else tuning.machine.get("num_hosts", "")
    return max(int(text), 1) if text.isdecimal() else 1


def meets(tuning: Tuning) -> bool:
    """Whether the command needs to be told where its agents meet."""
    return num_nodes(tuning) > 1 and calls(tuning.command, "torchrun")


class Meeting(NamedTuple):
    word: str  # of the command, or the variable
    host: str  # the name or address that it has
    is_store: bool  # it is a service of its own, and no agent of the job


def own_meeting(tuning: Tuning) -> Meeting | None:
    """As the user's command, or a variable of torchrun, says; None where neither does, and for one node."""
    if not meets(tuning):
        return None
    backend = launch_value(tuning.command, "torchrun", "--rdzv-backend") or "static"
    for flag in ("--rdzv-endpoint", "--master-addr"):
        place = launch_value(tuning.command, "torchrun", flag)
        if place and HEAD_NODE not in place:
            is_in_command = launch_word(tuning.command, "torchrun", flag) is not None
            word = f"{flag} {place}" if is_in_command else f"{variable_of('torchrun', flag)}={place}"
            host = place if flag == "--master-addr" else place.rpartition(":")[0] or place
            return Meeting(
                word, host.strip("[]").lower(), is_store=flag == "--rdzv-endpoint" and backend not in _BY_AGENTS
            )
    return None


def with_own_meeting(words: Sequence[str], num_nodes: int) -> tuple[str, ...]:
    """As the user has it, with the number of nodes where the command has none."""
    if launch_word(words, "torchrun", "--nnodes") is not None:
        return tuple(words)
    return with_launch_words(words, "torchrun", (f"--nnodes={num_nodes}",))


def with_variables(words: Sequence[str]) -> tuple[str, ...]:
    """As the user has it, with what his variables say of it as arguments: for where they are not handed on."""
    told = {flag: launch_value(words, "torchrun", flag) for flag in (*_OF_MEETING, "--rdzv-conf")}
    added = [
        f"{flag}={value}"
        for flag, value in told.items()
        if value is not None and launch_word(words, "torchrun", flag) is None
    ]
    return with_launch_words(words, "torchrun", added)


def is_static(words: Sequence[str]) -> bool:
    """Whether each agent must be told which one it is."""
    return (launch_value(words, "torchrun", "--rdzv-backend") or "static") == "static"


def with_rendezvous(words: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    return with_launch_words(words, "torchrun", added, dropped=_OWN)
