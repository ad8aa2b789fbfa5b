"""The one-line sentences about a failure: `Evidence` -> text. They are shown and kept, and never parsed."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from flatout.catalog.failures import FailureClass
from flatout.catalog.xids import xid_name
from flatout.inside.protocol import FailureKind
from flatout.keep.classify import Classification
from flatout.keep.evidence import Evidence, Failure
from flatout.keep.exits import RankExit
from flatout.units import num_bytes

ASKED = "a signal asked it to end"
WARNED = "it ended after an advance-warning signal (SIGUSR1 or SIGUSR2)"
HAS_WAITED = "RendezvousTimeoutError"  # as long as torchrun's timeout
_MAX_CHARACTERS = 200
_LAST_ERROR = "Last error:"
_SHELL_CODES = {
    2: "its arguments or its environment",
    126: "a program in it is not executable",
    127: "a program in it was not found",
}
# Text that precedes the error; classes that are not listed need none.
_TITLES: dict[FailureClass, str] = {
    "device-oom": "out of GPU memory",
    "disk-full": "the disk is full",
    "host-oom": "out of host memory",
    "shm-full": "shared memory is full",
    "secondary": "a rank lost its peers",
}
_TITLES_OF: dict[str, str] = {
    "unwritable": "a file cannot be read or written",
    "permission": "a file cannot be read or written",
    "locked": "its checkpoints belong to another job",
    "damaged-checkpoint": "a file of weights is damaged",
    "duplicate-gpu": "two ranks use the same GPU",
    "loader-timeout": "a loader worker did not deliver a batch in time",
    "no-infiniband-device": "the InfiniBand devices cannot be opened",
    "mismatched-collectives": "the ranks called different collectives",
    "rendezvous": "torchrun's agents did not find each other",
    "rendezvous-closed": "torchrun's agents did not find each other",
}
_OF_SCRIPTS = ("mistake", "settings", "import", "requirement", "exception", "tensor-mistake")
# Failures whose sentence already says what to do.
OBVIOUS = (*_OF_SCRIPTS, "own-exit-text", "files", "unwritable", "permission", "locked", "communication", "launcher")


def is_refused_checkpoint(failure: Failure) -> bool:
    """Whether `flatout.checkpoint` refuses to resume, for a reason other than a disk error or missing permission."""
    is_of_checkpoints = failure.exception in ("CheckpointError", "DamagedError")
    words = failure.words
    return is_of_checkpoints and (words is None or words.says_little or words.failure_class == "mistake")


def says_known(by_words: Classification, evidence: Evidence) -> str:
    """Describe a known failure, with NCCL's last error and the free space."""
    title = _TITLES_OF.get(by_words.known.name) or _TITLES.get(by_words.failure_class)
    if by_words.error.exception == "" and evidence.left is not None:
        text = says_left(evidence)
        wrote = _one_line(by_words.error.message)
        if not text.endswith(wrote):  # it is not the last line
            text = f"{text}; before it: {wrote}"
    elif by_words.known.name in ("rendezvous", "rendezvous-closed"):
        text = _says_agent(evidence)
    else:
        text = says_failure(evidence) + _says_cause(by_words, evidence) + _says_space(by_words, evidence)
    is_at_start = by_words.failure_class == "mistake" and not evidence.num_steps
    if is_at_start and evidence.root is not None and by_words.known.name in _OF_SCRIPTS:
        return f"before {_before_what(evidence.root)} {text}"
    if by_words.known.of_peers and evidence.flight_records:
        text += f"; NCCL wrote {evidence.flight_records[0]}"
    return f"{title}: {text}" if title else text


def says_failure(evidence: Evidence) -> str:
    """Say which rank raised which error, and where."""
    root = evidence.root
    assert root is not None
    if root.kind == FailureKind.EXIT:
        return f"rank {root.rank} ended itself: {first_line(evidence)}"
    where = f" at {root.line}" if root.line else ""
    return f"rank {root.rank} raised {root.exception}{where}: {first_line(evidence)}"


def first_line(evidence: Evidence) -> str:
    """Return the first line of the failure's message, with NCCL's last error."""
    assert evidence.root is not None
    raised = evidence.root.message.strip()  # of torch and NCCL, not ours
    first, _, _ = raised.partition("\n")
    _, _, last_error = raised.partition(_LAST_ERROR)
    shown = _one_line(first)
    detail = _one_line(last_error.strip().partition("\n")[0])
    return f"{shown} (NCCL's last error: {detail})" if detail else shown


def says_xids(numbers: Sequence[int]) -> str:
    """Name the Xids."""
    return ", ".join(f"Xid {number} ({xid_name(number) or 'unknown name'})" for number in sorted(set(numbers)))


def says_left(evidence: Evidence) -> str:
    """Say how the rank that left first ended, at which step, and what it wrote last."""
    left = evidence.left
    assert left is not None
    last_line = f"; its last line on standard error: {_one_line(left.last_lines[-1])}" if left.last_lines else ""
    return f"rank {left.rank} left first{_at_step(left)}: {_how(left)}{last_line}{_unread(evidence)}"


def _unread(evidence: Evidence) -> str:
    """Say that native code may have written why it ended, where nobody can read it back."""
    left = evidence.left
    is_native = left is not None and not left.is_orderly
    if evidence.has_native_lines or not is_native:
        return ""
    return "; what native code wrote last is unknown, because standard error is not a file (2>job.err)"


def says_left_early(evidence: Evidence) -> str:
    """Say that a rank's script ended while the other ranks needed it."""
    left = evidence.left
    assert left is not None
    how = "its script ended with exit code 0" if left.is_orderly else "it ended at once with exit code 0 (os._exit)"
    return (
        f"rank {left.rank} left first{_at_step(left)}: {how} while other ranks still waited for it: it had fewer"
        " batches, or took an exit that they did not take"
    )


def says_mismatch(evidence: Evidence) -> str:
    """Say in which collectives the ranks were when one of them was aborted."""
    left, root = evidence.left, evidence.root
    assert left is not None and root is not None and left.stack is not None
    return (
        f"rank {left.rank} was aborted{_at_step(left)} in a collective at {left.stack.user_frame()}, while rank"
        f" {root.rank} was in one at {root.line}: the ranks called different collectives, or called them with"
        " different shapes"
    )


def says_aborted_in_collective(evidence: Evidence) -> str:
    """Say in which collective a rank was aborted, and for what reasons libraries do so."""
    left = evidence.left
    assert left is not None and left.stack is not None
    return (
        f"rank {left.rank} was aborted{_at_step(left)} in a collective at {left.stack.user_frame()}: gloo does so if"
        f" the ranks call different collectives or shapes, and NCCL's watchdog after a timeout{_unread(evidence)}"
    )


def says_killed(evidence: Evidence) -> str:
    """Say which ranks ended without an error, or which signal ended the command."""
    if evidence.killed:
        ranks = ", ".join(str(rank) for rank in evidence.killed)
        plural = "s" * (len(evidence.killed) > 1)
        return f"rank{plural} {ranks} ended without an error message ({_how_killed(evidence)})"
    return f"the command was ended by {_signal_name(evidence.signal)}"


def _how_killed(evidence: Evidence) -> str:
    left = evidence.left
    if left is None or left.signal != signal.SIGKILL or left.rank not in evidence.killed:
        return "killed or crashed"
    return f"SIGKILL ended it{_at_step(left)}: the OOM killer, a scheduler, or a person"


def says_usage(evidence: Evidence) -> str:
    """Explain a shell's exit code for a command that cannot run."""
    return f"the command ended with code {evidence.code} before the first step: {_SHELL_CODES[evidence.code or 2]}"


def _how(left: RankExit) -> str:
    if left.signal is not None:
        where = left.stack.user_frame() if left.stack is not None else None
        return f"{_signal_name(left.signal)} ended it" + (f", in {where}" if where is not None else "")
    if left.is_orderly:
        return f"its script ended itself with exit code {left.code}"
    return f"it ended at once with exit code {left.code}, without cleaning up (os._exit, or native code)"


def _at_step(left: RankExit) -> str:
    return f", after {left.step} steps" if left.step else ", before its first step"


def _says_cause(by_words: Classification, evidence: Evidence) -> str:
    """Name the exception that decides, if it is not the last exception of the chain."""
    root = evidence.root
    if root is None or by_words.error == root.errors[-1]:
        return ""
    return f"; the cause: {by_words.error.exception}: {_one_line(by_words.error.message)}"


def _says_space(by_words: Classification, evidence: Evidence) -> str:
    space = evidence.root.space if evidence.root is not None else None
    if space is None:
        return ""
    if by_words.failure_class == "shm-full" and space.shm_free_bytes is not None:
        return f"; {num_bytes(space.shm_free_bytes)} free in /dev/shm"
    if by_words.failure_class == "disk-full" and space.free_bytes is not None:
        return f"; {num_bytes(space.free_bytes)} free in {space.folder}"
    return ""


def _says_agent(evidence: Evidence) -> str:
    root = evidence.root
    assert root is not None
    return f"{root.exception} {' '.join(root.message.split())[:_MAX_CHARACTERS]}".strip()


def _before_what(failure: Failure) -> str:
    return "the first step" if failure.has_torch else "`import torch`, or without importing it,"


def _one_line(text: str) -> str:
    shown = " ".join(text.split())[:_MAX_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in shown)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
