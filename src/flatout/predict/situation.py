"""Prepare an attributed job for predictions: build its replay, and remove the recorder's cost from its host times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.predict.replay import Edits, TraceReplayer
from flatout.records.change import JobFacts
from flatout.records.job import JobAttribution
from flatout.records.timeline import CommunicationCall, RankTimeline
from flatout.records.track import GpuWorkKind, RankTrack, Spent, TrackNode

MIN_HOST_SCALE = 0.3  # host time without the recorder relative to host time with it; the lowest observed is 0.55
HALVINGS = 8
# If the GPU, the network or loader workers set the pace, the step does not show the recorder's cost. These are the
# median of twelve jobs whose step does show it, and about their minimum and maximum (0.48 to 0.80).
HIDDEN_HOST_SCALE = 0.68
HIDDEN_RANGE = {"likely": HIDDEN_HOST_SCALE, "worst": 0.80, "best": 0.50}
SAME_STEPS = 0.1  # traced and untraced steps that differ by more than the recorder can explain are different steps
# Shares of the step spent waiting for loader workers. Below the first, workers do not set the pace. Between the two
# they do if the recorder does not prolong the step: a step that waits for a worker anyway hides the recorder's cost.
MIN_WAIT_SHARE, CLEAR_WAIT_SHARE = 0.02, 0.1
SINGLE_PROCESS = "_SingleProcess"


class Scenarios(msgspec.Struct, frozen=True, kw_only=True):
    """One change as an edit with one uncertain number, which is replayed at three values."""

    apply: Callable[[Edits, float], float | None]  # edits in place; can return the least seconds of a step
    likely: float
    worst: float
    best: float
    how: str
    assumptions: tuple[str, ...] = ()
    frees_pace: bool = False  # whether loader workers no longer set the pace of the step


class Situation:
    """A job as the models of `families` use it. Raises ValueError with the reason if nothing can be replayed."""

    def __init__(
        self, job: JobAttribution, facts: JobFacts, untraced_step_s: float | None = None, regular_share: float = 1.0
    ) -> None:
        """Prepare the replay. `regular_share` is the share of the job's mean step that its regular step takes."""
        if not job.timelines or any(t.track is None for t in job.timelines):
            raise ValueError("no steps are marked in the traces")
        self.job, self.facts = job, facts
        self.regular_share = regular_share
        self.timelines: dict[int, RankTimeline] = {t.rank: t for t in job.timelines}
        self.replay = TraceReplayer(job)
        self.tracks: dict[int, RankTrack] = self.replay.tracks
        self.seen_step_s = self.replay.seen_step_s(job)
        self.num_steps = max(min(track.num_steps for track in self.tracks.values()), 1)
        self._reduced_bytes = self._share_of_gradients()
        known_s = untraced_step_s if untraced_step_s is not None else self.seen_step_s
        # The minimum step time while the same workers load the batches, whatever else changes.
        self.pace_s = known_s if self._is_paced_by_workers(known_s) else 0.0
        self.is_untraced_known = untraced_step_s is not None
        found = self._host_scale(untraced_step_s)
        self.is_dilation_hidden = found is None
        # By scenario, because each scenario hides a different amount.
        self.host_scales = HIDDEN_RANGE if found is None else dict.fromkeys(HIDDEN_RANGE, found)
        self._steps_s: dict[float, float] = {}
        self.step_s = self.step_in("likely")
        self.error = abs(self.step_s / known_s - 1.0) if known_s > 0 else 0.0

    @property
    def host_scale(self) -> float:
        return self.host_scales["likely"]

    def edits(self, scenario: str = "likely") -> Edits:
        return self.replay.edits(self.host_scales[scenario])

    def step_in(self, scenario: str) -> float:
        """Return the replayed seconds per step without a change, with the host times of this scenario."""
        scale_ = self.host_scales[scenario]
        if scale_ not in self._steps_s:
            self._steps_s[scale_] = max(self.replay.step_s(self.edits(scenario)), self.pace_s)
        return self._steps_s[scale_]

    def speedup_of_job(self, speedup: float) -> float:
        """Return the job's speedup from a speedup of its regular step; stalls do not change."""
        return 1 / (1 - self.regular_share * (1 - 1 / speedup))

    def busy_s(self) -> float:
        """Return the compute seconds per step of the busiest rank's GPU: a lower bound of any step."""
        most = 0.0
        for track in self.tracks.values():
            own = (track.work != GpuWorkKind.COMMUNICATION) & (track.launched_by >= 0)
            most = max(most, float((track.end_ns - track.start_ns)[own].sum()))
        return most / self.num_steps / 1e9

    def _is_paced_by_workers(self, known_s: float) -> bool:
        names = [t.facts.loader_name for t in self.job.timelines if t.facts and t.facts.loader_name]
        if not names or any(SINGLE_PROCESS in name for name in names):
            return False
        share = self.spent_s(Spent.DATA_LOADING) / self.seen_step_s
        return share > CLEAR_WAIT_SHARE or (share > MIN_WAIT_SHARE and self.seen_step_s < (1 + SAME_STEPS) * known_s)

    def _host_scale(self, untraced_step_s: float | None) -> float | None:
        """Return the scale of host time at which the replayed step equals the untraced step; None: the step hides it.

        If no scale explains the difference, the traced steps were different steps (for example, only some contain a
        checkpoint), and nothing is scaled.
        """
        if untraced_step_s is None:
            return 1.0
        if self.pace_s:
            return None
        if untraced_step_s >= self.seen_step_s:
            return None if untraced_step_s <= (1 + SAME_STEPS) * self.seen_step_s else 1.0
        low, high = MIN_HOST_SCALE, 1.0
        least_s = self.replay.step_s(self.replay.edits(low))
        if least_s >= untraced_step_s:
            return None if least_s <= (1 + SAME_STEPS) * untraced_step_s else 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self.replay.step_s(self.replay.edits(middle)) < untraced_step_s:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    # What the models of changes ask for.

    def works(self, *kinds: GpuWorkKind) -> dict[int, NDArray[np.int64]]:
        """Return the rows of these kinds that were launched in the steps, by rank."""
        return {
            rank: np.flatnonzero(np.isin(track.work, kinds) & (track.launched_by >= 0))
            for rank, track in self.tracks.items()
        }

    def spent_s(self, spent: Spent) -> float:
        """Return the host seconds per step of the rank with the most."""
        return max(float(t.spent_ns[:, spent].sum()) for t in self.tracks.values()) / self.num_steps / 1e9

    def calls(self, rank: int, *operations: str) -> Iterator[tuple[int, CommunicationCall]]:
        """Yield the rows of the rank's collectives inside steps, with their calls, in the order of launch."""
        track, timeline = self.tracks[rank], self.timelines[rank]
        by_kernel: dict[int, CommunicationCall] = {}
        for call in timeline.communication.calls:
            by_kernel.setdefault(call.kernel, call)
        for row in np.flatnonzero((track.communication >= 0) & (track.launched_by >= 0)).tolist():
            call = by_kernel[int(track.communication[row])]
            if not operations or call.operation in operations:
                yield row, self._with_size(call)

    def _with_size(self, call: CommunicationCall) -> CommunicationCall:
        """Return an all-reduce without a size with an equal share of the gradients, if no all-reduce has a size."""
        if call.num_bytes is not None or call.operation != "all_reduce" or self._reduced_bytes is None:
            return call
        return msgspec.structs.replace(call, num_bytes=self._reduced_bytes)

    def _share_of_gradients(self) -> int | None:
        """Return the gradients' bytes per all-reduce of a known job whose trace has no shapes of gloo's calls."""
        facts = self.facts
        calls = [call for timeline in self.timelines.values() for call in timeline.communication.calls]
        reductions = [call for call in calls if call.operation == "all_reduce"]
        is_known = any(call.num_bytes is not None for call in reductions)
        if facts.gradient_bytes is None or facts.wrapper != "ddp" or is_known or not reductions:
            return None
        per_step = len(reductions) / len(self.timelines) / self.num_steps
        return max(round(facts.gradient_bytes * (facts.passes_per_step or 1) / per_step), 1)

    def steps_of(self, rank: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the step, from 0, in which each work was launched."""
        track = self.tracks[rank]
        marks = np.flatnonzero(track.node == TrackNode.MARK)
        return np.asarray(np.searchsorted(marks, track.launched_by[rows], side="right") - 1)


def remove(edits: Edits, rank: int, rows: NDArray[np.int64]) -> None:
    """Remove GPU work. The host time of its launch stays; to remove that too, scale `spent_ns`."""
    edits[rank].is_there[rows] = False
    edits[rank].duration_ns[rows] = 0.0


def scale(edits: Edits, rank: int, rows: NDArray[np.int64], factor: float | NDArray[np.float64]) -> None:
    edits[rank].duration_ns[rows] *= factor
