"""Follow a job without a screen. In: its status, again and again. Out: findings as they begin and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from flatout.records.watch import LiveFinding, WatchStatus
from flatout.watch.diagnosis.news import News
from flatout.watch.view.run_status import RunStatus


def follow(
    source: RunStatus, interval_s: float, *, sleep: Callable[[float], object] = time.sleep
) -> Iterator[LiveFinding]:
    """Yield each finding when it begins and when it ends, until the job ends."""
    news, last_step = News(), 0
    while True:
        status = source.read()
        step = max((rank.steps or 0 for rank in status.ranks), default=0)
        yield from news.of(status.findings, step)
        if _has_ended(status, source):
            yield from news.of(_ended_with_the_job(status, last_step), last_step)
            return
        last_step = step
        sleep(interval_s)


def _ended_with_the_job(status: WatchStatus, step: int) -> list[LiveFinding]:
    """Return the findings that continued when the job ended, as ended at its last step."""
    return [
        msgspec.structs.replace(finding, last_step=max(step, finding.first_step))
        for finding in status.findings
        if finding.last_step is None
    ]


def _has_ended(status: WatchStatus, source: RunStatus) -> bool:
    is_over = bool(status.ranks) and all(rank.state in ("ended", "lost") for rank in status.ranks)
    return is_over or not source.job.folder.exists()
