"""Name the change with the highest bound among those that the allowed class of changes excludes.

In: the diagnosis and the facts of the job. Out: a note, or None. A job may lose most of its time to a cause whose only
change is of another class: without the note, its tuning ends with nothing and does not say why.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.change.candidates import candidates, is_allowed
from flatout.records.change import Change, JobFacts, Safety
from flatout.records.diagnosis import Diagnosis

MIN_BOUND = 1.1  # on the speedup; below it the note is not worth reading


def note_on_not_allowed(
    diagnosis: Diagnosis, facts: JobFacts, allowed: Safety, applied: Sequence[Change] = ()
) -> str | None:
    """Say which change is not tried because of its class, although no other answers a finding; the highest bound wins.

    Changes of every job, such as autocast, answer no finding and are not named.
    """
    possible = candidates(diagnosis, facts, "semantic", applied=applied)
    answered = {name for change in possible if is_allowed(change, allowed) for name in change.predicted_from}
    unanswered = {finding.name for finding in diagnosis.findings} - answered
    excluded = [change for change in possible if unanswered.intersection(change.predicted_from)]
    best = max(excluded, key=lambda change: change.predicted_speedup or 1.0, default=None)
    if best is None or (best.predicted_speedup or 1.0) < MIN_BOUND:
        return None
    against = next(name for name in best.predicted_from if name in unanswered)
    return (
        f"{best.name} is not tried, because its class is {best.safety}: against {against} it could make"
        f" a step at most {best.predicted_speedup:.2f}x as fast; --allow {best.safety} tries it"
    )
