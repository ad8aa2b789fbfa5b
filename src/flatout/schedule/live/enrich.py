"""Data that Slurm does not report: durations predicted from ended jobs, and idle GPUs from utilization samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.input_files import read_bytes
from flatout.schedule.live.durations import EndedJobs
from flatout.schedule.live.slurm import Slurm
from flatout.schedule.live.usage import idle_jobs, read_samples
from flatout.schedule.live.view import ClusterView

Say = Callable[[str], None]


class Enricher:
    """Adds both to a view. If the samples cannot be read, it says so and does not consider any GPU idle."""

    def __init__(
        self, usage: str | None, ended: EndedJobs | None, *, idle_after_s: float, idle_below: float, say: Say
    ) -> None:
        """Read samples from `usage`. A GPU is idle if it was busy for less than `idle_below` of the time."""
        self._usage = usage
        self._ended = ended
        self._idle_after_s = idle_after_s
        self._idle_below = idle_below
        self._say = say

    def __call__(self, view: ClusterView) -> ClusterView:
        if self._ended is not None:
            view = msgspec.structs.replace(view, durations_s=self._ended.predicted(view.jobs))
        if self._usage is None:
            return view
        try:
            samples = read_samples(self._usage, now_unix_s=view.now_unix_s, window_s=self._idle_after_s)
        except InputError as error:
            self._say(f"no GPUs are being reclaimed: {error}")
            return view
        idle, unseen = idle_jobs(
            view.jobs,
            samples,
            now_unix_s=view.now_unix_s,
            grace_s=self._idle_after_s,
            threshold=self._idle_below,
        )
        if unseen:
            self._say(f"unknown for lack of samples whether their GPUs are idle: {len(unseen)} jobs, e.g. {unseen[0]}")
        return msgspec.structs.replace(view, idle_for_s=idle, unseen_jobs=unseen)


def ended_jobs(path: Path | None, scheduler: Slurm, say: Say) -> EndedJobs | None:
    """Return ended jobs from a file or Slurm's accounting.

    None, with a message, if there are no records of ended jobs.
    """
    if path is not None:
        try:
            text: str | None = read_bytes(path).decode("utf-8", "replace")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
    else:
        text = scheduler.history()
    if text is None:
        say("no accounting: time limits are used as durations; pass ended jobs with --history FILE")
        return None
    return EndedJobs(text, str(path) if path is not None else "sacct")
