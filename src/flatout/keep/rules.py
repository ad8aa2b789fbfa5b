"""Classify a failure, its fault and whether to restart: `Evidence` -> `Judgement`, by two tables.

The first rule that fits decides. What is observed from outside comes first (signals, the kernel's counters, the driver,
hangs), then the text of the first error (`catalog/failures.toml`), then how the first rank ended, then the type of the
error alone. `restart` depends only on the failure. The supervisor handles the budget, and repeated failures at the same
step, which it always treats as the user's bug.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from flatout.catalog.failures import FailureClass, Phase, Restart
from flatout.catalog.xids import has_no_effect, is_job_fault
from flatout.inside.protocol import FailureKind, MemoryKind
from flatout.keep import judgement_words as words
from flatout.keep.classify import Classification, classify
from flatout.keep.error_text import RaisedError
from flatout.keep.evidence import Evidence, Failure
from flatout.keep.exits import RankExit

Fault = Literal["nobody", "user", "machine", "network", "unknown"]
START_UP_S = 30.0  # by then, a launcher and its ranks have reached `import torch`, or the job does not use torch
ASKED = words.ASKED

_FAULTS: dict[FailureClass, Fault] = {
    "device-oom": "user",
    "disk-full": "user",
    "gpu": "machine",
    "host": "machine",
    "host-oom": "user",
    "job": "user",
    "mistake": "user",
    "network": "network",
    "preempted": "nobody",
    "secondary": "unknown",
    "shm-full": "user",
    "timeout": "unknown",
    "unknown": "unknown",
}
_LOADER_WORKER_ENDED = re.compile(r"DataLoader worker \(pid.*\) (?:is killed by signal: Killed|exited unexpectedly)")
_PLAIN_MISTAKES = {"SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError"}
_ROOM_IN_SHM_BYTES = 64 * 2**20  # if more than this is free, a bus error is not caused by a full /dev/shm
_SIGBUS, _SIGABRT, _SIGKILL = 7, 6, 9
# Failures that can be proved by a line from a rank. (Being asked to end is concluded from other ranks.)
_CLASSES_OF_LINES = ("gpu", "host", "host-oom", "device-oom", "shm-full", "disk-full", "job")
_RANK_PREFIX = re.compile(r"\[(?:rank|default)(\d+)\]:")
_OF_TORCHRUN = re.compile(
    r"\s*(?:time|host|rank|exitcode|error_file|traceback)\s+: |[EWI]\d{4} |.*Sending process \d+"
    r"|\[\d+\]:$|[-=]{20,}$|Failures:$|  <NO_OTHER_FAILURES>|Root Cause \(first observed failure\):$"
)
_LAST_LINES = 80  # of the command's standard error: torchrun's own traceback follows those of a rank
_SHELL_CODES = (2, 126, 127)
_GLOO = re.compile(r"\bgloo/transport\b")
_COLLECTIVES = re.compile(r"torch/distributed/distributed_c10d\.py$")


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    fault: Fault
    restart: Restart
    says: str  # one line
    failure_class: FailureClass = "unknown"
    way_out: str | None = None
    is_of_peers: bool = False  # its ranks lost those of other nodes: the cause, if there is another, is reported there
    awaits_peers: bool = False  # the launcher's agents on other nodes have not started yet, or have not ended yet
    key: str = ""  # key that is equal for equal failures

    @property
    def restarts(self) -> bool:
        return self.restart != "no"

    @property
    def leaves_host(self) -> bool:
        """Whether this host should not be used again."""
        return self.restart == "elsewhere"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    fits: Callable[[Evidence], bool]
    failure_class: FailureClass
    restart: Restart
    says: Callable[[Evidence], str]
    way_out: str | None = None


def judge(evidence: Evidence) -> Judgement:
    """Return the first judgement that fits: from outside, by words, by how ranks ended, by the error's type."""
    for rule in OBSERVED:
        if rule.fits(evidence):
            return _judgement(rule, evidence)
    by_words = _words_of(evidence)
    if by_words is not None and not by_words.says_little and not by_words.known.of_peers:
        return _by_words(by_words, evidence)
    for rule in ENDS:
        if rule.fits(evidence):
            return _judgement(rule, evidence)
    if by_words is not None:
        return _by_words(by_words, evidence)
    return _judgement(next(rule for rule in LAST if rule.fits(evidence)), evidence)


def phase_of(evidence: Evidence, failure: Failure) -> Phase | None:
    """Return the phase of a failure. Without torch, no step is ever seen: a process may have trained for long."""
    if evidence.num_steps:
        return "training"
    is_at_start = failure.has_torch or (failure.age_s is not None and failure.age_s < START_UP_S)
    if is_at_start:
        return "start"
    return None if failure.exception in _PLAIN_MISTAKES else "training"


def _words_of(evidence: Evidence) -> Classification | None:
    """Return the classification of the first error's text or, for a rank without an error, of its last lines."""
    root = evidence.root
    from_error = classify(root.errors, phase_of(evidence, root)) if root is not None else None
    if from_error is not None and not from_error.known.of_peers:
        return from_error
    from_lines = _words_of_lines(evidence)
    return from_lines if from_lines is not None else from_error


def _words_of_lines(evidence: Evidence) -> Classification | None:
    """Return the classification of a crashed or self-ended rank's last lines, if they match a known failure."""
    left = evidence.left
    is_silent = left is not None and (left.is_crash or bool(left.code))
    if left is None or not is_silent:
        return None
    of_command = [line for line in evidence.last_lines if _may_be_of(left.rank, line)][-_LAST_LINES:]
    lines = [RaisedError(exception="", message=line) for line in (*left.last_lines, *of_command)]
    classification = classify(lines, "training" if evidence.num_steps else "start")
    if classification is None or classification.failure_class not in _CLASSES_OF_LINES:
        return None
    return None if classification.known.of_peers else classification


def _may_be_of(rank: int, line: str) -> bool:
    """Whether a line of the command's output may be the rank's: lines of other ranks and torchrun are recognisable."""
    prefix = _RANK_PREFIX.match(line)
    is_of_other = prefix is not None and int(prefix[1]) != rank
    return not is_of_other and _OF_TORCHRUN.match(line) is None


def _judgement(rule: Rule, evidence: Evidence) -> Judgement:
    return Judgement(
        rule=rule.name,
        fault=_FAULTS[rule.failure_class],
        restart=rule.restart,
        says=rule.says(evidence),
        failure_class=rule.failure_class,
        way_out=rule.way_out,
        key=_key(rule.name, evidence),
    )


def _by_words(by_words: Classification, evidence: Evidence) -> Judgement:
    known = by_words.known
    root = evidence.root
    is_rendezvous = root is not None and root.exception.startswith("Rendezvous")
    return Judgement(
        rule=known.name,
        fault=_FAULTS[by_words.failure_class],
        restart=by_words.restart,
        says=words.says_known(by_words, evidence),
        failure_class=by_words.failure_class,
        way_out=None if known.of_peers or known.name in words.OBVIOUS else known.way_out,
        is_of_peers=known.of_peers,
        awaits_peers=is_rendezvous and root is not None and root.exception != words.HAS_WAITED,
        key=_key(known.name, evidence),
    )


def _key(name: str, evidence: Evidence) -> str:
    root = evidence.root
    left = evidence.left
    parts: list[object] = [name, evidence.code, evidence.signal]
    if root is not None:
        parts += [root.exception, root.line, re.sub(r"0x[0-9a-f]+|\d+", "#", root.message)]
    if root is None or root.is_of_peers:  # otherwise the launcher may have ended them
        parts.append(evidence.killed)
        parts.append((left.rank, left.code, left.signal) if left is not None else None)
    if evidence.hang is not None:
        parts += [evidence.hang.late, [state.frame for state in evidence.hang.ranks]]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]  # a hash, because the ledger contains no job texts


def _machine_xids(evidence: Evidence) -> tuple[int, ...]:
    return tuple(number for number in evidence.xids if not is_job_fault(number) and not has_no_effect(number))


def _job_xids(evidence: Evidence) -> tuple[int, ...]:
    return tuple(number for number in evidence.xids if is_job_fault(number))


def _is_oom_kill(evidence: Evidence) -> bool:
    """Whether the kernel killed for lack of memory, and a rank, a loader's worker or the launcher was killed."""
    if evidence.cause == "out_of_memory":
        return True
    if not evidence.num_oom_kills:
        return False
    is_worker = _root(evidence, lambda f: bool(_LOADER_WORKER_ENDED.search(f.message)))
    return bool(evidence.killed) or evidence.signal == _SIGKILL or is_worker


def _root(evidence: Evidence, fits: Callable[[Failure], bool]) -> bool:
    return evidence.root is not None and fits(evidence.root)


def _left(evidence: Evidence, fits: Callable[[RankExit], bool]) -> bool:
    """Whether a rank that ended silently is the cause: no rank has raised an error, except about its peers."""
    has_own_error = evidence.root is not None and not evidence.root.is_of_peers
    return not has_own_error and evidence.left is not None and fits(evidence.left)


def _is_shm_bus_error(evidence: Evidence) -> bool:
    root = evidence.root
    free_bytes = root.space.shm_free_bytes if root is not None and root.space is not None else None
    is_full = free_bytes is None or free_bytes < _ROOM_IN_SHM_BYTES
    return is_full and _left(evidence, lambda left: left.signal == _SIGBUS)


def _is_aborted_in_collective(left: RankExit) -> bool:
    """Whether a rank was aborted in a collective."""
    if left.signal != _SIGABRT or left.stack is None or left.stack.user_frame() is None:
        return False
    return any(_COLLECTIVES.search(frame.file) for frame in left.stack.frames[:6])


def _is_aborted_collective(evidence: Evidence) -> bool:
    """Whether a rank was aborted in a collective that another one called at a different line, or with gloo.

    Gloo aborts a rank that gets another collective, or another shape, than it asks for, and nothing else does so there.
    """
    left, root = evidence.left, evidence.root
    if left is None or left.stack is None or not _is_aborted_in_collective(left):
        return False
    if root is None or not root.is_of_peers or root.line is None:
        return False
    is_at_other_line = not str(left.stack.user_frame()).startswith(f"{root.line} ")
    return is_at_other_line or _GLOO.search(root.message) is not None


OBSERVED: tuple[Rule, ...] = (
    Rule(
        name="asked-to-end",
        fits=lambda e: e.was_asked_to_end or (e.was_warned and e.code != 0 and e.root is None and e.hang is None),
        failure_class="preempted",
        restart="no",
        says=lambda e: words.ASKED if e.was_asked_to_end else words.WARNED,
    ),
    Rule(
        name="done",
        fits=lambda e: e.code == 0 and e.hang is None,
        failure_class="preempted",
        restart="no",
        says=lambda e: "done",
    ),
    Rule(
        name="gpu-failure",
        fits=lambda e: bool(_machine_xids(e)),
        failure_class="gpu",
        restart="elsewhere",
        says=lambda e: words.says_xids(_machine_xids(e)),
    ),
    Rule(
        name="lost-node",
        fits=lambda e: e.cause == "void",
        failure_class="host",
        restart="yes",
        says=lambda e: e.reason or "a node was lost",
    ),
    Rule(
        name="host-out-of-memory",
        fits=_is_oom_kill,
        failure_class="host-oom",
        restart="yes",
        says=lambda e: "the OOM killer ended a process: use fewer loader workers or more host memory",
    ),
    Rule(
        name="hang",
        fits=lambda e: e.hang is not None,
        failure_class="unknown",
        restart="yes",
        says=lambda e: e.hang.describe() if e.hang is not None else "",
    ),
    Rule(
        name="refused-checkpoint",
        # The first step is included: only then is it found that checkpoints exist although `resume` was not called.
        fits=lambda e: e.num_steps <= 1 and _root(e, words.is_refused_checkpoint),
        failure_class="mistake",
        restart="no",
        says=lambda e: f"it cannot use its checkpoints: {words.says_failure(e)}",
    ),
    Rule(
        name="arguments",
        fits=lambda e: not e.num_steps and _root(e, lambda f: f.is_refusal),
        failure_class="mistake",
        restart="no",
        says=lambda e: f"the script rejects its arguments: {words.first_line(e)}",
    ),
)
# How ranks ended, if no error has a known text, or errors only report lost peers.
ENDS: tuple[Rule, ...] = (
    Rule(
        name="gpu-out-of-memory",
        fits=lambda e: _root(e, lambda f: f.kind == FailureKind.OUT_OF_MEMORY and f.where == MemoryKind.DEVICE),
        failure_class="device-oom",
        restart="yes",
        says=lambda e: f"out of GPU memory: {words.says_failure(e)}",
    ),
    Rule(
        name="gpu-fault",
        fits=lambda e: bool(_job_xids(e)),
        failure_class="job",
        restart="yes",
        says=lambda e: words.says_failure(e) if e.root is not None else words.says_xids(_job_xids(e)),
    ),
    Rule(
        name="shared-memory-full",
        fits=_is_shm_bus_error,
        failure_class="shm-full",
        restart="no",
        says=lambda e: f"{words.says_left(e)}; usually because /dev/shm is full",
        way_out="Give the container more shared memory (docker --shm-size), or use fewer loader workers.",
    ),
    Rule(
        name="mismatched-collectives",
        fits=_is_aborted_collective,
        failure_class="job",
        restart="no",
        says=words.says_mismatch,
        way_out="Look for code that only some ranks run; TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls.",
    ),
    Rule(
        name="left-early",
        fits=lambda e: _left(e, lambda left: left.is_regular),
        failure_class="job",
        restart="no",
        says=words.says_left_early,
        way_out="Give all ranks the same number of batches (DistributedSampler's drop_last, or DDP's join).",
    ),
    Rule(
        name="rank-exit",
        fits=lambda e: _left(e, lambda left: bool(left.code)),
        failure_class="unknown",
        restart="yes",
        says=words.says_left,
    ),
    Rule(
        name="aborted-in-collective",
        fits=lambda e: _left(e, _is_aborted_in_collective),
        failure_class="unknown",
        restart="yes",
        says=words.says_aborted_in_collective,
        way_out="TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls of all ranks.",
    ),
    Rule(
        name="crash",
        fits=lambda e: _left(e, lambda left: left.is_crash),
        failure_class="unknown",
        restart="yes",
        says=words.says_left,
    ),
    Rule(
        name="killed",
        fits=lambda e: bool(e.killed) and (e.root is None or e.root.is_of_peers),
        failure_class="unknown",
        restart="yes",
        says=words.says_killed,
    ),
)
# The remaining evidence if no rank reported an error.
LAST: tuple[Rule, ...] = (
    Rule(
        name="usage",
        fits=lambda e: not e.num_steps and e.code in _SHELL_CODES,
        failure_class="mistake",
        restart="no",
        says=words.says_usage,
    ),
    Rule(
        name="signal",
        fits=lambda e: e.signal is not None,
        failure_class="unknown",
        restart="yes",
        says=words.says_killed,
    ),
    Rule(
        name="exit-code",
        fits=lambda e: True,
        failure_class="unknown",
        restart="yes",
        says=lambda e: f"the command ended with code {e.code} without an error message",
    ),
)
RULES = (*OBSERVED, *ENDS, *LAST)
