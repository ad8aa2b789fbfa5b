"""What to report of the findings: each when it begins and when it ends, once.

In: the findings of a job, again and again. Out: those to report now. A slowdown is reported with its cause: if the
cause is unknown at first, the report waits for it for some steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.watch import LiveFinding

UNNAMED_STEPS = 200  # after which a slowdown is reported without a cause
_OF_THEIR_OWN = ("stopped", "memory")


class News:
    def __init__(self) -> None:
        self._begun: set[tuple[str, int]] = set()
        self._ended: set[tuple[str, int]] = set()

    def of(self, findings: Sequence[LiveFinding], step: int) -> list[LiveFinding]:
        """Return the findings to report, the oldest first. `step` is the job's last one."""
        news = []
        for finding in sorted(findings, key=lambda each: each.last_step or each.first_step):
            key = _key(finding)
            if finding.last_step is not None:
                is_new = key not in self._ended
                self._ended.add(key)
            else:
                is_named = finding.cause != "unknown" or step - finding.first_step >= UNNAMED_STEPS
                is_new = is_named and key not in self._begun
                self._begun |= {key} if is_named else set()
            if is_new:
                news.append(finding)
        return news


def _key(finding: LiveFinding) -> tuple[str, int]:
    """Return what stays the same when an unknown cause is named."""
    kind = finding.cause if finding.cause in _OF_THEIR_OWN else "slowdown"
    return kind, finding.first_step
