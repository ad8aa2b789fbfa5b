"""Classify a failure, its fault and whether to restart: `Evidence` -> `Judgement`, by one table.

The first rule that fits decides. `restart` is the answer for the failure alone. The supervisor decides about the
budget, and about a failure that repeats at the same step: whatever its kind, that is the user's bug.
"""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Callable
from typing import Literal

import msgspec

from flatout.catalog.xids import is_job_fault, xid_name
from flatout.inside.protocol import FailureKind, MemoryKind
from flatout.keep.evidence import Evidence, Failure

Fault = Literal["nobody", "user", "machine", "network", "unknown"]
START_UP_S = 30.0  # by then a launcher's ranks have reached `import torch`, unless the job does not use torch
_PLAIN_MISTAKES = {"SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError"}
# A mistake in the script. Before the first step, the next attempt would end the same way.
_MISTAKES = _PLAIN_MISTAKES | {
    *("NameError", "AttributeError"),
    *(
        "TypeError",
        "ValueError",
        "KeyError",
        "IndexError",
        "AssertionError",
        "NotImplementedError",
        "UnboundLocalError",
    ),
    "FileNotFoundError",
}
_GPU_ERRORS = re.compile(
    r"illegal memory access|device-side assert|misaligned address|unspecified launch failure", re.I
)
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.I)
_UNWRITABLE = re.compile(r"read-only file system|permission denied", re.I)
_OF_FILES = {"OSError", "PermissionError", "CheckpointError"}
_SHELL_CODES = {
    2: "its arguments or its environment",
    126: "a program in it is not executable",
    127: "a program in it was not found",
}
_DEVICE_LOST = re.compile(r"ECC|fallen off the bus|no CUDA-capable device|device\(s\) is/are busy or unavailable", re.I)


ASKED = "it was asked to end by a signal"
_HAS_WAITED = "RendezvousTimeoutError"  # raised after torchrun's own timeout


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    fault: Fault
    restarts: bool
    says: str  # one line for the user
    leaves_host: bool = False  # this host should not be used again
    # its ranks lost those of other nodes; a cause, if there is one, is reported on those nodes
    is_of_peers: bool = False
    awaits_peers: bool = False  # the launcher's agents on other nodes have not arrived yet, or not left yet
    key: str = ""  # equal for equal failures


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    fits: Callable[[Evidence], bool]
    fault: Fault
    restarts: bool
    says: Callable[[Evidence], str]
    leaves_host: bool = False


def judge(evidence: Evidence) -> Judgement:
    rule = next(rule for rule in RULES if rule.fits(evidence))
    return Judgement(
        rule=rule.name,
        fault=rule.fault,
        restarts=rule.restarts,
        says=rule.says(evidence),
        leaves_host=rule.leaves_host,
        is_of_peers=rule.name in ("communication", "rendezvous"),
        awaits_peers=rule.name == "rendezvous" and not _root(evidence, lambda f: f.exception == _HAS_WAITED),
        key=_key(rule.name, evidence),
    )


def _key(name: str, evidence: Evidence) -> str:
    root = evidence.root
    parts: list[object] = [name, evidence.code, evidence.signal]
    if root is not None:
        parts += [root.exception, root.line, re.sub(r"0x[0-9a-f]+|\d+", "#", root.message)]
    if root is None or root.is_of_peers:  # otherwise the launcher may have ended its ranks itself
        parts.append(evidence.killed)
    if evidence.hang is not None:
        parts += [evidence.hang.late, [state.frame for state in evidence.hang.ranks]]
    # hashed, because it is written to the ledger, which has no texts of the job
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _machine_xids(evidence: Evidence) -> tuple[int, ...]:
    return tuple(number for number in evidence.xids if not is_job_fault(number))


def _says_xids(evidence: Evidence, numbers: tuple[int, ...]) -> str:
    return ", ".join(f"Xid {number} ({xid_name(number) or 'no name is known'})" for number in sorted(set(numbers)))


def _says_failure(evidence: Evidence) -> str:
    root = evidence.root
    assert root is not None
    if root.kind == FailureKind.EXIT:
        return f"rank {root.rank} ended itself: {_message(evidence)}"
    where = f" at {root.line}" if root.line else ""
    return f"rank {root.rank} raised {root.exception}{where}: {_message(evidence)}"


def _message(evidence: Evidence) -> str:
    """Return the first line of the failure's message."""
    assert evidence.root is not None
    message = evidence.root.message.strip().splitlines()
    return "".join(one if one.isprintable() else "?" for one in message[0][:200]) if message else ""


def _says_agent(evidence: Evidence) -> str:
    root = evidence.root
    assert root is not None
    return f"{root.exception} {' '.join(root.message.split())[:200]}".strip()


def _root(evidence: Evidence, fits: Callable[[Failure], bool]) -> bool:
    return evidence.root is not None and fits(evidence.root)


def _is_mistake(failure: Failure) -> bool:
    """Whether an exception is a mistake in the script.

    Without torch no step is ever seen, so a process that ran longer than a start takes may have trained for long.
    """
    is_at_start = failure.has_torch or (failure.age_s is not None and failure.age_s < START_UP_S)
    return failure.exception in (_MISTAKES if is_at_start else _PLAIN_MISTAKES)


def _before_what(evidence: Evidence) -> str:
    return "the first step" if _root(evidence, lambda f: f.has_torch) else "`import torch`, or without it,"


def _says_killed(evidence: Evidence) -> str:
    if evidence.killed:
        ranks = ", ".join(str(rank) for rank in evidence.killed)
        return (
            f"rank{'s' * (len(evidence.killed) > 1)} {ranks} ended without an error message, as by a SIGKILL or a crash"
        )
    return f"the command was ended by {_signal_name(evidence.signal)}"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


RULES: tuple[Rule, ...] = (
    Rule(
        name="asked-to-end",
        fits=lambda e: e.was_asked_to_end,
        fault="nobody",
        restarts=False,
        says=lambda e: ASKED,
    ),
    Rule(
        name="done",
        fits=lambda e: e.code == 0 and e.hang is None,
        fault="nobody",
        restarts=False,
        says=lambda e: "done",
    ),
    Rule(
        name="gpu-failure",
        fits=lambda e: bool(_machine_xids(e)) or _root(e, lambda f: bool(_DEVICE_LOST.search(f.message))),
        fault="machine",
        restarts=True,
        leaves_host=True,
        says=lambda e: _says_xids(e, _machine_xids(e)) or _says_failure(e),
    ),
    Rule(
        name="lost-node",
        fits=lambda e: e.cause == "void",
        fault="machine",
        restarts=True,
        says=lambda e: e.reason or "a node was lost",
    ),
    Rule(
        name="host-out-of-memory",
        fits=lambda e: bool(e.num_oom_kills and (e.killed or e.signal == signal.SIGKILL)) or e.cause == "out_of_memory",
        fault="user",
        restarts=True,
        says=lambda e: "the OOM killer ended a process: use fewer loader workers or more host memory",
    ),
    Rule(
        name="hang",
        fits=lambda e: e.hang is not None,
        fault="unknown",
        restarts=True,
        says=lambda e: e.hang.describe() if e.hang is not None else "",
    ),
    Rule(
        name="gpu-out-of-memory",
        fits=lambda e: _root(e, lambda f: f.kind == FailureKind.OUT_OF_MEMORY and f.where == MemoryKind.DEVICE),
        fault="user",
        restarts=True,
        says=lambda e: f"out of GPU memory: {_says_failure(e)}",
    ),
    Rule(
        name="full-disk",
        fits=lambda e: _root(e, lambda f: bool(_FULL.search(f.message))),
        fault="user",
        restarts=False,
        says=lambda e: f"the disk is full: {_says_failure(e)}",
    ),
    Rule(
        name="unwritable",
        fits=lambda e: _root(e, lambda f: f.exception in _OF_FILES and bool(_UNWRITABLE.search(f.message))),
        fault="user",
        restarts=False,
        says=lambda e: f"a file cannot be read or written: {_says_failure(e)}",
    ),
    Rule(
        name="locked",
        fits=lambda e: _root(e, lambda f: f.exception == "LockedError"),
        fault="user",
        restarts=False,
        says=lambda e: f"its checkpoints are another job's: {_says_failure(e)}",
    ),
    Rule(
        name="refused-checkpoint",
        # Also at the first step: a script that did not call `resume` sees the existing checkpoints only when it saves.
        fits=lambda e: e.num_steps <= 1 and _root(e, lambda f: f.exception in ("CheckpointError", "DamagedError")),
        fault="user",
        restarts=False,
        says=lambda e: f"its checkpoints are refused: {_says_failure(e)}",
    ),
    Rule(
        name="gpu-fault",
        fits=lambda e: bool(e.xids) or _root(e, lambda f: bool(_GPU_ERRORS.search(f.message))),
        fault="user",
        restarts=True,
        says=lambda e: _says_failure(e) if e.root is not None else _says_xids(e, e.xids),
    ),
    Rule(
        name="arguments",
        fits=lambda e: not e.num_steps and _root(e, lambda f: f.is_refusal),
        fault="user",
        restarts=False,
        says=lambda e: f"the script refuses its arguments: {_message(e)}",
    ),
    Rule(
        name="rendezvous",
        fits=lambda e: _root(e, lambda f: f.exception.startswith("Rendezvous")),
        fault="network",
        restarts=True,
        says=lambda e: f"torchrun's agents did not meet: {_says_agent(e)}",
    ),
    Rule(
        name="mistake",
        fits=lambda e: not e.num_steps and _root(e, _is_mistake),
        fault="user",
        restarts=False,
        says=lambda e: f"before {_before_what(e)} {_says_failure(e)}",
    ),
    Rule(
        name="killed",
        fits=lambda e: bool(e.killed) and (e.root is None or e.root.is_of_peers),
        fault="unknown",
        restarts=True,
        says=_says_killed,
    ),
    Rule(
        name="communication",
        fits=lambda e: _root(e, lambda f: f.is_of_peers),
        fault="network",
        restarts=True,
        says=lambda e: _says_failure(e) + (f"; NCCL wrote {e.flight_records[0]}" if e.flight_records else ""),
    ),
    Rule(name="exception", fits=lambda e: e.root is not None, fault="user", restarts=True, says=_says_failure),
    Rule(
        name="usage",
        fits=lambda e: not e.num_steps and e.code in (2, 126, 127),
        fault="user",
        restarts=False,
        says=lambda e: f"the command ended with code {e.code} before the first step: {_SHELL_CODES[e.code or 2]}",
    ),
    Rule(name="signal", fits=lambda e: e.signal is not None, fault="unknown", restarts=True, says=_says_killed),
    Rule(
        name="exit-code",
        fits=lambda e: True,
        fault="unknown",
        restarts=True,
        says=lambda e: f"the command ended with code {e.code} without an error message",
    ),
)
