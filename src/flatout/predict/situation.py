"""An attributed job made ready for predictions: its replay, and its host times freed of the recorder's cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.predict.replay import Edits, Replay
from flatout.records.change import JobFacts
from flatout.records.job import JobAttribution
from flatout.records.timeline import CommunicationCall, RankTimeline
from flatout.records.track import Node, RankTrack, Spent, Work

MIN_HOST_SCALE = 0.3  # host time without the recorder over with it; 0.55 is the least seen
HALVINGS = 8
# Where workers that are too slow set the pace, the step does not show the host's own time: the middle of what is seen.
PACED_HOST_SCALE = 0.6
MIN_WAIT_SHARE = 0.02  # of the step, waiting for loader workers: less does not set the pace
SINGLE_PROCESS = "_SingleProcess"


class Scenarios(msgspec.Struct, frozen=True, kw_only=True):
    """One change as an edit with one uncertain number in it, that is replayed at three values."""

    apply: Callable[[Edits, float], float | None]  # edits in place; may return seconds that a step takes at least
    likely: float
    worst: float
    best: float
    how: str
    assumptions: tuple[str, ...] = ()
    frees_pace: bool = False  # the loader workers no longer set it


class Situation:
    """What the models of `families` work on. Raises ValueError with the reason where nothing can be replayed."""

    def __init__(self, job: JobAttribution, facts: JobFacts, untraced_step_s: float | None = None) -> None:
        if not job.timelines or any(t.track is None for t in job.timelines):
            raise ValueError("the traces mark no steps")
        self.job, self.facts = job, facts
        self.timelines: dict[int, RankTimeline] = {t.rank: t for t in job.timelines}
        self.replay = Replay(job)
        self.tracks: dict[int, RankTrack] = self.replay.tracks
        self.seen_step_s = self.replay.seen_step_s(job)
        self.num_steps = max(min(track.num_steps for track in self.tracks.values()), 1)
        known_s = untraced_step_s if untraced_step_s is not None else self.seen_step_s
        # A step takes at least this long, whatever else changes, while the same workers make the batches.
        self.pace_s = known_s if self._is_paced_by_workers() else 0.0
        self.is_dilation_known = untraced_step_s is not None and not self.pace_s
        if self.pace_s and untraced_step_s is not None:
            self.host_scale = PACED_HOST_SCALE
        else:
            self.host_scale = self._host_scale(untraced_step_s)
        self.step_s = max(self.replay.step_s(self.edits()), self.pace_s)
        self.error = abs(self.step_s / known_s - 1.0) if known_s > 0 else 0.0

    def edits(self) -> Edits:
        return self.replay.edits(self.host_scale)

    def _is_paced_by_workers(self) -> bool:
        names = [t.facts.loader_name for t in self.job.timelines if t.facts and t.facts.loader_name]
        if not names or any(SINGLE_PROCESS in name for name in names):
            return False
        return self.spent_s(Spent.DATA_LOADING) > MIN_WAIT_SHARE * self.seen_step_s

    def _host_scale(self, untraced_step_s: float | None) -> float:
        """Host time without the recorder, so that the replayed step is the untraced one.

        Where no host time could be the difference, the traced steps were others (a checkpoint is in only some), and
        nothing is scaled.
        """
        if untraced_step_s is None or untraced_step_s >= self.seen_step_s:
            return 1.0
        low, high = MIN_HOST_SCALE, 1.0
        if self.replay.step_s(self.replay.edits(low)) >= untraced_step_s:
            return 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self.replay.step_s(self.replay.edits(middle)) < untraced_step_s:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    # What the models ask.

    def works(self, *kinds: Work) -> dict[int, NDArray[np.int64]]:
        """Rows of these kinds that were launched in the steps, by rank."""
        return {
            rank: np.flatnonzero(np.isin(track.work, kinds) & (track.launched_by >= 0))
            for rank, track in self.tracks.items()
        }

    def spent_s(self, spent: Spent) -> float:
        """Host seconds a step, of the rank that spends most."""
        return max(float(t.spent_ns[:, spent].sum()) for t in self.tracks.values()) / self.num_steps / 1e9

    def calls(self, rank: int, *operations: str) -> Iterator[tuple[int, CommunicationCall]]:
        """Rows of the rank's collectives with what they carry, in the order of launch; those inside steps."""
        track, timeline = self.tracks[rank], self.timelines[rank]
        by_kernel: dict[int, CommunicationCall] = {}
        for call in timeline.communication.calls:
            by_kernel.setdefault(call.kernel, call)
        for row in np.flatnonzero((track.communication >= 0) & (track.launched_by >= 0)).tolist():
            call = by_kernel[int(track.communication[row])]
            if not operations or call.operation in operations:
                yield row, call

    def steps_of(self, rank: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The step, from 0, in which each work was launched."""
        track = self.tracks[rank]
        marks = np.flatnonzero(track.node == Node.MARK)
        return np.asarray(np.searchsorted(marks, track.launched_by[rows], side="right") - 1)


def remove(edits: Edits, rank: int, rows: NDArray[np.int64]) -> None:
    """Takes GPU work out. The host time of its launch stays: whoever removes it, too, scales `spent_ns`."""
    edits[rank].is_there[rows] = False
    edits[rank].duration_ns[rows] = 0.0


def scale(edits: Edits, rank: int, rows: NDArray[np.int64], factor: float | NDArray[np.float64]) -> None:
    edits[rank].duration_ns[rows] *= factor
