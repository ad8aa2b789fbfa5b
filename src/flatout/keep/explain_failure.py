"""Explain the text of a failure: a traceback, a log or one message -> `FailureExplanation`."""

from __future__ import annotations

from flatout.catalog.failure_words import WordEstimate, estimate
from flatout.catalog.failures import Phase, Restart, is_information, likely_failure
from flatout.keep.classify import Classification, classify
from flatout.keep.error_text import RaisedError, errors_in, phase_in, without_names
from flatout.records.failure import FailureExplanation
from flatout.secrets import masked_text

LEAST_LIKELY = 0.35  # an estimate by words counts if it is at least so likely
# And where a rule knows the words, and that they have several causes. In 707 texts that neither had seen, 0.35 to 0.7
# give the same class, and 0.6 the most right decisions.
LEAST_LIKELY_BESIDE_UNKNOWN = 0.6
_MAX_CHARACTERS = 500
_MAX_LINES = 40  # the last lines of a log whose words are compared
_AROUND = 3  # lines before and after the one that decides, whose words count with it


def explain_failure(text: str, phase: Phase | None = None) -> FailureExplanation:
    """Explain the first cause in a text. Without a phase, it is derived from a traceback's frames if possible."""
    if phase is None:
        phase = phase_in(text)
    errors = errors_in(text)
    classification = classify(errors, phase)
    found = _estimate(errors, classification, phase)
    if found is not None and (classification is None or classification.failure_class != found.failure_class):
        return _likely(found, errors, classification, phase)
    if classification is None:
        return _unexplained(errors[-1].message if errors else "", phase)
    known = classification.known
    return FailureExplanation(
        failure_class=classification.failure_class,
        restart=_restart(classification, found),
        name=known.name,
        phase=phase,
        means=known.means,
        way_out=known.way_out,
        is_about_peers=known.of_peers,
        exception=classification.error.exception or None,
        text=_shown(classification.error.message),
        words=classification.words or None,
        source=known.source,
    )


def _estimate(
    errors: list[RaisedError], classification: Classification | None, phase: Phase | None
) -> WordEstimate | None:
    """Return what the words make likely where no rule is strong; None if they do not say enough."""
    if classification is not None and not classification.is_weak:
        return None
    error = _compared(errors, classification)
    if error is None:
        return None
    said = None if classification is None else (classification.failure_class, classification.restart)
    found = estimate(error.exception, without_names(error.message), phase, said)
    return found if found.likelihood >= _least_likely(classification) else None


def _least_likely(classification: Classification | None) -> float:
    if classification is None or not classification.is_of_several_causes:
        return LEAST_LIKELY
    return LEAST_LIKELY_BESIDE_UNKNOWN


def _restart(classification: Classification, found: WordEstimate | None) -> Restart:
    """Return whether another start helps. A weak rule that the estimate does not confirm leaves no host."""
    if found is not None:
        return found.restart
    is_doubtful = classification.is_weak and classification.restart == "elsewhere"
    return "yes" if is_doubtful else classification.restart


def _likely(
    found: WordEstimate, errors: list[RaisedError], classification: Classification | None, phase: Phase | None
) -> FailureExplanation:
    error = _compared(errors, classification)
    assert error is not None
    likely = likely_failure(found.failure_class)
    return FailureExplanation(
        failure_class=found.failure_class,
        restart=found.restart,
        name=None,
        phase=phase,
        means=likely.means,
        way_out=likely.way_out,
        is_about_peers=found.failure_class == "secondary",
        exception=error.exception or None,
        text=_shown(error.message),
        words=None,
        source=None,
        likelihood=found.likelihood,
    )


def _compared(errors: list[RaisedError], classification: Classification | None) -> RaisedError | None:
    """Return what decides: an exception, a line with those around it, or the last lines, as one; None if none does."""
    if classification is not None and classification.error.exception:
        return classification.error
    lines = [line.message for line in errors if not line.exception and not is_information(line.message)]
    decides = classification.error.message if classification is not None else None
    if decides in lines:
        i = lines.index(decides)
        lines = lines[max(i - _AROUND, 0) : i + _AROUND + 1]
    elif decides is not None:
        lines = [decides]
    return RaisedError(exception="", message="\n".join(lines[-_MAX_LINES:])) if lines else None


def _unexplained(last_line: str, phase: Phase | None) -> FailureExplanation:
    return FailureExplanation(
        failure_class="unknown",
        restart="yes",
        name=None,
        phase=phase,
        means="No line of this text matches a known failure.",
        way_out="Look at the first error of the first rank that failed. If it fails on this host twice, run elsewhere.",
        is_about_peers=False,
        exception=None,
        text=_shown(last_line),
        words=None,
        source=None,
    )


def _shown(message: str) -> str:
    return masked_text(message)[:_MAX_CHARACTERS]
