"""Explain the text of a failure: a traceback, a log or one message -> `FailureExplanation`."""

from __future__ import annotations

from flatout.catalog.failures import Phase
from flatout.keep.classify import classify
from flatout.keep.error_text import errors_in, phase_in
from flatout.records.failure import FailureExplanation
from flatout.secrets import masked_text

_MAX_CHARACTERS = 500


def explain_failure(text: str, phase: Phase | None = None) -> FailureExplanation:
    """Explain the first cause in a text. Without a phase, it is derived from a traceback's frames if possible."""
    if phase is None:
        phase = phase_in(text)
    errors = errors_in(text)
    classification = classify(errors, phase)
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
