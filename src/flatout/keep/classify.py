"""Classify a failure by its text: exceptions and lines of logs -> the entry of `failures.toml` that explains them.

In: the chain of a failure, the original cause first, and whether a step was made before it. Out: a `Classification`.
Evidence from outside the process (exit codes, kills, hangs, counters) is judged by `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flatout.catalog.failures import FailureClass, Fit, KnownFailure, Phase, Restart, fit
from flatout.catalog.xids import has_no_effect, is_job_fault
from flatout.keep.error_text import RaisedError, without_names

# An Xid in a line of the driver, where the Xid that caused it counts, or in a line of DCGM.
_XID = re.compile(r"\bXid \([^)]*\): (\d+)\b(?:.{0,300}\bcaused by previous Xid (\d+))?|\bDetected XID (\d+) for GPU\b")
# A line of a log that ends with the text of an exception: `Error running job: CUDA out of memory`.
_INTRODUCED = re.compile(r"\b(?:error|exception|failed|failure)\b[^:\n]{0,40}: (?=\S)", re.IGNORECASE)
_INFORMATION = re.compile(r"\bNCCL INFO\b|^\S*UserWarning: Plan failed")  # lines that a healthy job writes, too
# Pseudo-types under which the table has the Xids of the kernel's log.
_XID_OF_JOB, _XID_OF_GPU, _XID_RECORDED = "Xid of the job", "Xid of the GPU", "Xid without effect"
_PHYSICAL = {"gpu", "host", "host-oom", "shm-full", "disk-full"}  # classes that a line of a log can prove
_SAYS_LITTLE = {"exception", "launcher", "files", "communication", "own-exit-text"}
_OF_NCCL = {"nccl-internal", "nccl-system", "nccl-error"}  # results without the line that says why
_FOLLOWS = {"nccl-aborted"}  # what a rank says after its own or another one's complaint
_WARNING = re.compile(r"^\[?W(?:\d{3,4} \d\d:\d\d:| \S{1,100}\.cpp:\d+\])")  # of torch and glog: the program continued
_SAID_ALIKE = {"tensor-mistake"}  # entries for exceptions whose words mean the same in a line that introduces them
# Places in the order of explanations: a line that belongs to a family explains more than an exception that says little
# only if it shows a fault of the machine.
_FAMILY, _LOOSE_FAMILY = 5, 7
_AFTER_COMPLAINT, _AFTER_PEERS = 5.5, 6


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """The classification of a failure by its text."""

    known: KnownFailure
    failure_class: FailureClass
    restart: Restart
    error: RaisedError  # the error that decides
    words: str  # the words that match; empty if only the type matches

    @property
    def says_little(self) -> bool:
        """Whether the text does not match any known failure, so that all other evidence takes precedence."""
        return self.known.name in _SAYS_LITTLE

    @property
    def is_weak(self) -> bool:
        """Whether the words of similar failures may say more: the entry is a family, or its words have many causes."""
        return self.says_little or self.known.is_family or self.failure_class == "unknown"

    @property
    def is_of_several_causes(self) -> bool:
        """Whether the words are known, and known to have several causes."""
        return self.failure_class == "unknown" and not self.says_little and not self.known.is_family

    @property
    def is_by_words(self) -> bool:
        return bool(self.words)


def classify(errors: Sequence[RaisedError], phase: Phase | None) -> Classification | None:
    """Classify a chain of exceptions, or the lines of a log; None if nothing in it is known.

    An error that explains the others comes before those that only follow from it, see `_rank`; of two equal ones, the
    first.
    """
    candidates = [(error, found) for error in errors if (found := _fit(error)) is not None]
    if not candidates:
        return None
    error, best = min(candidates, key=lambda candidate: _rank(*candidate))
    return Classification(
        known=best.failure,
        failure_class=best.failure.class_in(phase),
        restart=best.failure.restart_in(phase),
        error=error,
        words=best.words,
    )


def _fit(error: RaisedError) -> Fit | None:
    if not error.exception and _INFORMATION.search(error.message) is not None:
        return None
    xid = _XID.search(error.message) if not error.exception else None
    if xid is not None:
        return fit(_type_of_xid(int(xid[3] or xid[2] or xid[1])), error.message)
    message = without_names(error.message)
    found = fit(error.exception, message)
    return _introduced(message) if found is None and not error.exception else found


def _introduced(message: str) -> Fit | None:
    """Return the entry that fits the text of an exception of torch or the script at the end of a line."""
    introduced = _INTRODUCED.search(message)
    if introduced is None:
        return None
    found = fit("RuntimeError", message[introduced.end() :])
    return found if found is not None and found.failure.name in _SAID_ALIKE else None


def _type_of_xid(number: int) -> str:
    if is_job_fault(number):
        return _XID_OF_JOB
    return _XID_RECORDED if has_no_effect(number) else _XID_OF_GPU


def _rank(error: RaisedError, found: Fit) -> float:
    """Return the place of an error in the order of explanations: 0 explains best."""
    failure = found.failure
    is_known = failure.failure_class != "unknown"
    if failure.is_family:
        return _LOOSE_FAMILY if not error.exception and failure.failure_class not in _PHYSICAL else _FAMILY
    if failure.name in _SAYS_LITTLE or (not error.exception and _WARNING.match(error.message) is not None):
        return _AFTER_PEERS
    if failure.of_peers:
        return _AFTER_COMPLAINT if failure.name in _FOLLOWS else 5
    if failure.name in _OF_NCCL:
        return 4
    if error.exception and not found.is_by_type and is_known:
        return 0
    if failure.failure_class in _PHYSICAL:
        return 1
    if error.exception and found.is_by_type:
        return 2
    return 3 if is_known else 4
