"""The live views of one job and of all jobs. In: which job. Out: a screen until the user quits, or one status."""

from __future__ import annotations

import msgspec

from flatout.errors import InputError
from flatout.records.watch import RankStatus, WatchStatus
from flatout.report.terminal import TextStyle
from flatout.report.watch_text import num_scrollable_columns, top_lines, watch_lines
from flatout.watch.jobs import RunningJob, choose_job, running_jobs
from flatout.watch.view.gpu_status import GpuReadings
from flatout.watch.view.process_status import ProcessStatus
from flatout.watch.view.profile_status import ProfileStatus
from flatout.watch.view.run_status import RunStatus
from flatout.watch.view.screen import show_live

Source = RunStatus | ProfileStatus | ProcessStatus
_PAGE_ROWS = 10
JOB_ENDED = "the job has ended: this is its last status"
_STATE_ORDER = ("lost", "stopped", "starting", "running", "ended")
_SORTS = ("rank", "slowest first", "state")


def open_source(job: str | None, attach: int | None, gpu_price: float | None = None) -> Source:
    """Return the source of a job's status. Raise InputError if there is no such job or process."""
    gpus = GpuReadings()
    if attach is not None:
        return ProcessStatus(attach, gpus)
    return _source_of(choose_job(job), gpus, gpu_price)


def open_run(job: str | None, gpu_price: float | None) -> RunStatus:
    """Return the source of a job of `flatout run`. Raise InputError if it is another one: only those have findings."""
    chosen = choose_job(job)
    if chosen.program != "flatout run":
        raise InputError(f"{chosen.name} is a job of `{chosen.program}`, which has no findings while it runs")
    return RunStatus(chosen, GpuReadings(), gpu_price)


def all_statuses() -> list[WatchStatus]:
    """Return the status of each job on this host."""
    gpus = GpuReadings()
    return [_source_of(job, gpus).read() for job in running_jobs()]


def _source_of(job: RunningJob, gpus: GpuReadings, gpu_price: float | None = None) -> Source:
    return RunStatus(job, gpus, gpu_price) if job.program == "flatout run" else ProfileStatus(job)


class JobScreen:
    """The screen of one job, and what the user has chosen on it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._status = source.read()
        self._sort = 0
        self._first_row = 0
        self._first_column = 0
        self._is_paused = False

    def show(self, interval_s: float) -> None:
        show_live(self.render, self.on_key, interval_s)

    def render(self, style: TextStyle, height: int) -> list[str]:
        if not self._is_paused:
            self._status = _last_known(self._status, self._source.read())
        status = msgspec.structs.replace(self._status, ranks=self._sorted(self._status.ranks))
        return watch_lines(
            status,
            style,
            height=height,
            first_row=self._first_row,
            first_column=self._first_column,
            has_keys=True,
        )

    def on_key(self, key: str) -> None:
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -_PAGE_ROWS, "page-down": _PAGE_ROWS}
        last_row = max(len(self._status.ranks) - 1, 0)
        self._first_row = min(max(self._first_row + moves.get(key, 0), 0), last_row)
        sideways = {"left": -1, "h": -1, "right": 1, "l": 1}
        last_column = num_scrollable_columns(self._status.ranks) - 1
        self._first_column = min(max(self._first_column + sideways.get(key, 0), 0), last_column)
        if key == "s":
            self._sort = (self._sort + 1) % len(_SORTS)
        elif key == "p":
            self._is_paused = not self._is_paused

    def _sorted(self, ranks: tuple[RankStatus, ...]) -> tuple[RankStatus, ...]:
        match _SORTS[self._sort]:
            case "slowest first":
                return tuple(sorted(ranks, key=lambda rank: -(rank.step_s or 0.0)))
            case "state":
                return tuple(sorted(ranks, key=lambda rank: _STATE_ORDER.index(rank.state)))
        return ranks


def _last_known(before: WatchStatus, now: WatchStatus) -> WatchStatus:
    """Return the current status; once the job's files are gone, its last one, with a note."""
    if now.ranks or not before.ranks:
        return now
    return msgspec.structs.replace(before, notes=(JOB_ENDED,))


def show_all(interval_s: float) -> None:
    """Show all jobs of this host until the user quits."""
    show_live(lambda style, height: top_lines(all_statuses(), style, height), lambda key: None, interval_s)
