"""Predict how long jobs will run: the median of the user's ended jobs with the same name, or else of all their jobs.

In: output of `sacct -X -P -o JobID,User,JobName,Partition,State,ElapsedRaw`, with its header and any other columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from flatout.errors import InputError
from flatout.schedule.live.view import JobView

_NEEDED = ("User", "JobName", "State", "ElapsedRaw")
_NUMBERS = re.compile(r"\d+")
_MOST_DIGITS = 9  # of seconds: three decades
_MIN_JOBS = 3


def _is_elapsed(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


class EndedJobs:
    """Ended jobs by user and name; names that differ only in numbers (`train_lr3`, `train_lr4`) count as one."""

    def __init__(self, text: str, source: str) -> None:
        header, *rows = text.splitlines() or [""]
        names = header.split("|")
        columns = {name: position for position, name in enumerate(names)}
        missing = [name for name in _NEEDED if name not in columns]
        if missing:
            raise InputError(
                f"{source} must have the columns {', '.join(_NEEDED)}, but has no {missing[0]}",
                hint="sacct -a -X -P -S now-30days -o JobID,User,JobName,Partition,State,ElapsedRaw",
            )
        self._elapsed_s: dict[tuple[str, str], list[float]] = {}
        self.num_jobs = 0
        for row in rows:
            fields = row.split("|")
            if len(fields) != len(names):
                continue  # a name with line breaks
            user, name, state, elapsed = (fields[columns[column]] for column in _NEEDED)
            if state.split(" ")[0] in ("COMPLETED", "TIMEOUT", "FAILED") and _is_elapsed(elapsed):
                self.num_jobs += 1
                for key in ((user, _NUMBERS.sub("#", name)), (user, "")):
                    self._elapsed_s.setdefault(key, []).append(float(elapsed))

    def predicted(self, jobs: Iterable[JobView]) -> dict[str, float]:
        """Return the predicted seconds by job; jobs of users with fewer than three ended jobs are skipped."""
        predicted_s: dict[str, float] = {}
        for job in jobs:
            for key in ((job.user, _NUMBERS.sub("#", job.name)), (job.user, "")):
                ended_s = self._elapsed_s.get(key, ())
                if len(ended_s) >= _MIN_JOBS:
                    predicted_s[job.id] = median(ended_s)
                    break
        return predicted_s
