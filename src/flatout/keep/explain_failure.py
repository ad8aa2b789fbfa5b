"""Explain the text of a failure: a traceback, a log or one message -> `FailureExplanation`."""

from __future__ import annotations

from flatout.catalog.failure_words import estimate
from flatout.catalog.failures import Phase, is_information, likely_failure
from flatout.keep.classify import Classification, classify
from flatout.keep.error_text import RaisedError, errors_in, phase_in, without_names
from flatout.records.failure import FailureExplanation
from flatout.secrets import masked_text

LEAST_LIKELY = 0.35  # an estimate by words counts if it is at least so likely
_LEAST_LIKELY_OTHERWISE = 0.5  # ... if it would leave this host, or says otherwise than an exception's type
_MAX_CHARACTERS = 500
_MAX_LINES = 40  # the last lines of a log whose words are compared


def explain_failure(text: str, phase: Phase | None = None) -> FailureExplanation:
    """Explain the first cause in a text. Without a phase, it is derived from a traceback's frames if possible."""
    if phase is None:
        phase = phase_in(text)
    errors = errors_in(text)
    classification = classify(errors, phase)
    if classification is None or classification.says_little:
        estimated = _estimated(errors, classification, phase)
        if estimated is not None:
            return estimated
    if classification is None:
        return _unexplained(errors[-1].message if errors else "", phase)
    known = classification.known
    return FailureExplanation(
        failure_class=classification.failure_class,
        restart=classification.restart,
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


def _estimated(
    errors: list[RaisedError], classification: Classification | None, phase: Phase | None
) -> FailureExplanation | None:
    """Return what the words make likely, where the text has no known wording; None if they do not."""
    if not errors:
        return None
    error = classification.error if classification is not None else None
    if error is None or not error.exception:
        lines = [line.message for line in errors if not line.exception and not is_information(line.message)]
        if not lines:
            return None
        error = RaisedError(exception="", message="\n".join(lines[-_MAX_LINES:]))
    found = estimate(error.exception, without_names(error.message), phase)
    is_otherwise = found.restart == "elsewhere" or bool(error.exception)
    said_by_type = "unknown" if classification is None else classification.failure_class
    least_likely = _LEAST_LIKELY_OTHERWISE if is_otherwise else LEAST_LIKELY
    if said_by_type == found.failure_class or found.likelihood < least_likely:
        return None
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
