"""Decide which `flatout run`s belong to one job: by its name, where its nodes meet, and the program that they run.

In: what the launcher's arguments and the environment say. Out: a `JobIdentity`, whose keys are equal for the nodes and
the starts of one job, and differ between jobs, also between jobs that were given the same name. No host is asked: two
spellings of one meeting point count as two.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from flatout.keep.previous_runs import JobStart

_KEY_CHARACTERS = 16
_LOOPBACKS = ("localhost", "127.", "::1", "0.0.0.0")


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the job that a `flatout run` keeps alive."""

    name: str | None  # from the user, the scheduler or torchrun; None: the job has no name
    spans_nodes: bool  # other `flatout run`s, on other nodes or in other tasks, belong to the job
    node_key: str  # equal on all nodes of the job, for one start of it
    job_key: str  # equal on all nodes of the job and for all its starts
    awaits_nodes: bool = False  # its launcher starts no rank before the other nodes have come


def job_identity(
    start: JobStart | None,
    program: Sequence[str],
    *,
    meeting: str | None,
    spans_nodes: bool,
    awaits_nodes: bool = False,
) -> JobIdentity:
    """Return the identity of a job. `program` is the command without its launchers, and `meeting` the rendezvous.

    A job on one node without a name has new keys in each call: no other run belongs to that job.
    """
    name = None if start is None else start.job
    words = _without_ranks(program)
    own_key = uuid.uuid4().hex[:_KEY_CHARACTERS]
    point = "" if meeting is None else _meeting_point(meeting)
    node_key = _digest([name or "", point, *words]) if spans_nodes else own_key
    return JobIdentity(
        name=name,
        spans_nodes=spans_nodes,
        node_key=node_key,
        job_key=node_key if start is None else _digest([start.job, *_unchanged_by_a_start(start, words)]),
        awaits_nodes=awaits_nodes,
    )


def script_of(program: Sequence[str]) -> str:
    """Return the name of the script or module that a program runs, or the code after `-c`; else the program's name."""
    for word, following in zip(program, [*program[1:], ""], strict=False):
        if word in ("-m", "--module", "-c") and following:
            return following
        if word.endswith(".py"):
            return PurePath(word).name
    return PurePath(program[0]).name if program else ""


def _unchanged_by_a_start(start: JobStart, words: Sequence[str]) -> Sequence[str]:
    """Return the words that all starts of the job have in common.

    Slurm's ID alone names a job, and a batch script can put the number of the start into its command. A name that the
    user gave can be used again for another script, and torchrun's rendezvous ID, as in a tutorial, for anything.
    """
    if start.number is not None:
        return ()
    return words if start.is_from_rendezvous else (script_of(words),)


def _digest(parts: Sequence[str]) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_KEY_CHARACTERS]


def _without_ranks(program: Sequence[str]) -> list[str]:
    """Return the words without the interpreter's folder and without `--node-rank 1`, which differ between nodes."""
    kept: list[str] = []
    is_value_of_rank = False
    for word in program:
        if is_value_of_rank:
            is_value_of_rank = False
            continue
        option, _, value = word.partition("=")
        if option.startswith("-") and option.endswith("rank"):
            is_value_of_rank = not value
            continue
        kept.append(word)
    return [PurePath(kept[0]).name, *kept[1:]] if kept else []


def _meeting_point(endpoint: str) -> str:
    """Return the endpoint with one name for its host: on the host itself, `localhost` and its own name are the same."""
    host, separator, port = endpoint.rpartition(":")
    if not separator or not port.isdecimal():
        host, port = endpoint, ""
    if host.strip("[]").startswith(_LOOPBACKS):
        host = os.uname().nodename
    is_address = host.replace(".", "").isdecimal() or ":" in host
    return f"{host if is_address else host.partition('.')[0]}:{port}"
