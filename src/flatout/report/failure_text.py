"""The explanation of a failure as text for a terminal."""

from __future__ import annotations

from flatout.records.failure import FailureExplanation
from flatout.report.terminal import TextStyle

_RESTART = {
    "yes": "may help",
    "no": "does not help: it would fail again",
    "elsewhere": "helps on another host",
}
_PHASE = {"start": "before the first step", "training": "after the first step"}


def failure_text(explanation: FailureExplanation, style: TextStyle) -> str:
    """Return the class, what it means, the way out, and the words that decide."""
    title = f"{explanation.failure_class}: another start {_RESTART[explanation.restart]}"
    if explanation.likelihood is not None:
        title += f" ({explanation.likelihood:.0%} likely, by words that it shares with known failures)"
    lines = [style.bold(style.clean(title)), *style.wrapped(explanation.means)]
    if explanation.is_about_peers:
        lines += style.wrapped("This rank reports a failure of another rank: the rank that failed first has the cause.")
    lines += ["", *style.wrapped(explanation.way_out, label="way out: ")]
    decides = ": ".join(filter(None, (explanation.exception, explanation.text)))
    lines += style.wrapped(decides or "(the text is empty)", label="from:    ")
    if explanation.phase is not None:
        lines += style.wrapped(_PHASE[explanation.phase], label="when:    ")
    elif explanation.name is not None:
        lines += style.wrapped("unknown; --phase start or training can change the answer", label="when:    ")
    if explanation.source is not None:
        lines.append(style.dim(f"source:  {explanation.source}"))
    return "\n".join(lines)
