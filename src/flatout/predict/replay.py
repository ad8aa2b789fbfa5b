"""Replay the tracks of all ranks with edited host times, durations and waits, to find when each step would begin.

This is a discrete-event replay. A host node happens once the host time since the previous node has passed and, for a
wait, once the awaited work has ended. GPU work begins once it is launched, its stream is free and the work on another
stream that it depends on has ended, each plus the observed delay. A collective's transfer begins when the last rank
that it needs has arrived. Nothing is random: without an edit, the replay reproduces the recording.

Not modelled: communication kernels that slow concurrent compute, caches, clocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.job import JobAttribution, Match
from flatout.records.track import HOST_WORK, RankTrack, TrackNode

LAUNCH_NS = 3_000  # minimum time from a launching call to its work; less is observed only if clocks differ
FROM_ROOT, TO_ROOT = {"broadcast", "scatter"}, {"reduce", "gather"}
Floats = NDArray[np.float64]
Place = tuple[int, int]  # rank and row of its work


class Edit(msgspec.Struct, kw_only=True, eq=False):
    """One rank's times, which a model changes before the replay; `TraceReplayer.edits` returns the recorded ones."""

    spent_ns: Floats  # shape (nodes, Spent)
    duration_ns: Floats  # by work; for a collective, only its transfer
    is_waiting: NDArray[np.bool_]  # by node: false if the host no longer waits
    is_there: NDArray[np.bool_]  # by work: false if it is removed


Edits = dict[int, Edit]


class _Delays(msgspec.Struct, frozen=True, eq=False):
    """Observed delays: after the launch, after the previous work on the stream, after another stream's work."""

    launch: list[float]
    gap: list[float]
    after: list[float]
    previous: list[int]  # row of the previous work on the stream; -1: none


class TraceReplayer:
    """Replays all ranks of a job, any number of times."""

    def __init__(self, job: JobAttribution) -> None:
        self.tracks: dict[int, RankTrack] = {t.rank: t.track for t in job.timelines if t.track is not None}
        self._delays = {rank: _delays(track) for rank, track in self.tracks.items()}
        self._rows = {rank: _rows_of_kernels(track) for rank, track in self.tracks.items()}
        self._needs = self._all_needs(job.matches)
        self._transfer = {t.rank: self._transfers(job, t.rank) for t in job.timelines if t.rank in self.tracks}
        self.num_forced = 0  # number of collectives in the last replay whose partners never arrived
        self._steps_s: dict[bytes, float] = {}  # by the digest of the edits

    def edits(self, host_scale: float = 1.0) -> Edits:
        """Return all times as recorded; host work, which the profiler prolongs, is multiplied by `host_scale`."""
        result = {}
        for rank, track in self.tracks.items():
            spent = track.spent_ns.astype(np.float64)
            spent[:, list(HOST_WORK)] *= host_scale
            result[rank] = Edit(
                spent_ns=spent,
                duration_ns=self._transfer[rank].copy(),
                is_waiting=np.ones(len(track.node), dtype=np.bool_),
                is_there=np.ones(len(track.work), dtype=np.bool_),
            )
        return result

    def step_s(self, edits: Edits) -> float:
        """Replay, and return the mean step over ranks and complete steps.

        A third of the scenarios of a job's candidates change the same times, and are replayed once.
        """
        digest = _digest(edits)
        if digest not in self._steps_s:
            begins = self.step_begins_ns(edits)
            steps_ns = [(at[-1] - at[0]) / (len(at) - 1) for at in begins.values()]
            self._steps_s[digest] = float(np.mean(steps_ns)) / 1e9
        return self._steps_s[digest]

    def step_begins_ns(self, edits: Edits) -> dict[int, Floats]:
        """Replay, and return by rank when each step begins and when the last step ends, on the common clock."""
        origin = min(track.origin_ns for track in self.tracks.values())
        runs = {
            rank: _Run(track, self._delays[rank], edits[rank], self._needs[rank], track.origin_ns - origin)
            for rank, track in self.tracks.items()
        }
        self.num_forced = _run_all(runs)
        return {rank: _begins(self.tracks[rank], run) for rank, run in runs.items()}

    def seen_step_s(self, job: JobAttribution) -> float:
        """Return the mean step in the traces."""
        spans = [t.steps for t in job.timelines if t.rank in self.tracks]
        return float(np.mean([(steps[-1].end_ns - steps[0].start_ns) / len(steps) for steps in spans])) / 1e9

    def _all_needs(self, matches: Sequence[Match]) -> dict[int, dict[int, list[Place]]]:
        """Return, by rank and row, the other ranks' works that must have begun before this work can transfer."""
        result: dict[int, dict[int, list[Place]]] = {rank: {} for rank in self.tracks}
        for match in matches:
            places = {rank: self._rows[rank].get(kernel, -1) for rank, kernel in match.kernels.items()}
            for rank, row in places.items():
                if row >= 0:
                    needed = [(other, at) for other, at in places.items() if other != rank and at >= 0]
                    result[rank].setdefault(row, []).extend(_required(match, rank, needed))
        return result

    def _transfers(self, job: JobAttribution, rank: int) -> Floats:
        """Return the durations; for collectives whose arrivals are known, only the time after the last arrival."""
        track, arrivals = self.tracks[rank], job.arrivals[rank]
        duration = (track.end_ns - track.start_ns).astype(np.float64)
        comm = np.flatnonzero(track.communication >= 0)
        kernel = track.communication[comm]
        begin = np.maximum(arrivals.until_ns[kernel] - track.origin_ns, track.start_ns[comm])
        seen = track.end_ns[comm] - track.start_ns[comm]
        known = arrivals.is_known[kernel]
        duration[comm] = np.where(known, np.maximum(track.end_ns[comm] - begin, 0), seen)
        for row in comm[~known].tolist():
            self._needs[rank].pop(row, None)
        return duration


def _digest(edits: Edits) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for rank, edit in edits.items():
        digest.update(str(rank).encode())
        for values in (edit.spent_ns, edit.duration_ns, edit.is_waiting, edit.is_there):
            digest.update(values.tobytes())
    return digest.digest()


class _Run:
    """The state of one rank during a replay."""

    def __init__(
        self, track: RankTrack, delays: _Delays, edit: Edit, needs: Mapping[int, list[Place]], offset_ns: int
    ) -> None:
        self.delays, self.needs, self.offset = delays, needs, float(offset_ns)
        self.host = edit.spent_ns.sum(axis=1).tolist()
        self.wait_of = np.where(edit.is_waiting, track.waits_for, -1).tolist()
        self.tail = track.tail_ns.tolist()
        self.is_mark = (track.node == TrackNode.MARK).tolist()
        self.duration = edit.duration_ns.tolist()
        self.is_there = edit.is_there.tolist()
        self.after = track.after.tolist()
        self.launched_by = track.launched_by.tolist()
        num = len(self.duration)
        self.start: list[float | None] = [None] * num
        self.end: list[float | None] = [None] * num
        self.marks: list[float] = []
        self.stuck: int | None = None
        self.first = 0
        for row in range(num):  # launched before the first step: as recorded
            if self.launched_by[row] >= 0:
                break
            self.start[row] = float(track.start_ns[row]) + self.offset
            self.end[row] = float(track.end_ns[row]) + self.offset
            self.first = row + 1

    def go(self, runs: Mapping[int, _Run]) -> Generator[None]:
        """Run until the end; yield whenever the rank must wait for another rank."""
        now, row, num = self.offset, self.first, len(self.duration)
        start, end, launch = self.start, self.end, self.delays.launch
        previous, gap, after_delay = self.delays.previous, self.delays.gap, self.delays.after
        for node, spent in enumerate(self.host):
            now += spent
            if self.is_mark[node]:
                self.marks.append(now)
            waits_for = self.wait_of[node]
            if waits_for >= 0:
                while (done := self._end(waits_for, runs)) is None:
                    self.stuck = waits_for
                    yield
                now = max(now, done) + self.tail[node]
            while row < num and self.launched_by[row] == node:
                begin = now + launch[row]
                before = previous[row]
                if before >= 0:
                    while (done := self._end(before, runs)) is None:
                        self.stuck = before
                        yield
                    begin = max(begin, done + gap[row]) if self.is_there[row] else done
                before = self.after[row]
                if before >= 0 and self.is_there[row] and before < row:
                    while (done := self._end(before, runs)) is None:
                        self.stuck = before
                        yield
                    begin = max(begin, done + after_delay[row])
                start[row], end[row] = begin, None
                if not self.is_there[row]:
                    end[row] = begin
                elif row not in self.needs:
                    end[row] = begin + self.duration[row]
                row += 1
        for row in self.needs:
            while row >= self.first and self._end(row, runs) is None:
                self.stuck = row
                yield

    def _end(self, row: int, runs: Mapping[int, _Run]) -> float | None:
        done = self.end[row]
        if done is not None:
            return done
        arrived = self.start[row]
        if arrived is None:
            return None
        for rank, other in self.needs.get(row, ()):
            theirs = runs[rank].start[other]
            if theirs is None:
                return None
            arrived = max(arrived, theirs)
        self.end[row] = arrived + self.duration[row]
        return self.end[row]

    @property
    def waits_for_others(self) -> bool:
        return self.stuck is not None and self.start[self.stuck] is not None

    def force(self) -> bool:
        """End the blocking operation: a collective as if all ranks had arrived; a wait for later work at once."""
        if self.stuck is None or self.end[self.stuck] is not None:
            return False
        arrived = self.start[self.stuck]
        self.end[self.stuck] = 0.0 if arrived is None else arrived + self.duration[self.stuck]
        return True


def _run_all(runs: Mapping[int, _Run]) -> int:
    """Run every rank; return the number of collectives that had to be ended without their partners."""
    active = {rank: run.go(runs) for rank, run in runs.items()}
    forced = 0
    before: dict[int, tuple[int | None, int]] = {}
    while active:
        for rank in list(active):
            if next(active[rank], active) is active:
                del active[rank]
        now = {rank: (runs[rank].stuck, len(runs[rank].marks)) for rank in active}
        if active and now == before:
            # First end what no other rank can resolve: waits for work that the rank itself launches later.
            if not any(runs[rank].force() for rank in sorted(active, key=lambda rank: runs[rank].waits_for_others)):
                raise ValueError("the recorded waits contradict each other, so the replay never ends")
            forced += 1
        before = now
    return forced


def _begins(track: RankTrack, run: _Run) -> Floats:
    """Return each mark, or the end of the last work launched before it if that is later; the last is the end of all."""
    ends = np.array([end if end is not None else 0.0 for end in run.end])
    reach = np.maximum.accumulate(ends) if len(ends) else ends
    marks = np.flatnonzero(track.node == TrackNode.MARK)
    num_before = np.searchsorted(track.launched_by, marks, side="left")
    num_before[-1] = len(ends)
    drained = np.where(num_before > 0, reach[np.maximum(num_before - 1, 0)] if len(ends) else 0.0, 0.0)
    return np.asarray(np.maximum(np.array(run.marks), drained))


def _required(match: Match, rank: int, others: list[Place]) -> list[Place]:
    if match.operation in FROM_ROOT and match.root is not None:
        root = _member(match, match.root)
        return [place for place in others if place[0] == root]
    if match.operation in TO_ROOT and match.root is not None and rank != _member(match, match.root):
        return []
    return others


def _member(match: Match, root: int) -> int:
    if match.members is None or root in match.members:
        return root
    return match.members[root] if 0 <= root < len(match.members) else root


def _rows_of_kernels(track: RankTrack) -> dict[int, int]:
    rows = np.flatnonzero(track.communication >= 0)
    return dict(zip(track.communication[rows].tolist(), rows.tolist(), strict=True))


def _delays(track: RankTrack) -> _Delays:
    """Return the observed delay after the last event that each work waited for, and usual delays after the others."""
    num = len(track.work)
    previous = _previous(track.stream)
    start = track.start_ns
    launched = np.where(track.launched_by >= 0, track.node_ns[np.maximum(track.launched_by, 0)], np.iinfo(np.int64).min)
    never = np.iinfo(np.int64).min // 2
    free = np.where(previous >= 0, track.end_ns[previous], never) if num else start
    other = np.where(track.after >= 0, track.end_ns[track.after], never) if num else start
    binding = np.argmax(np.stack((launched + LAUNCH_NS, free, other)), axis=0) if num else start
    return _Delays(
        np.where(binding == 0, start - launched, np.minimum(start - launched, LAUNCH_NS)).astype(float).tolist(),
        np.where(binding == 1, start - free, np.minimum(start - free, 1_000)).astype(float).tolist(),
        np.where(binding == 2, start - other, np.minimum(start - other, 1_000)).astype(float).tolist(),
        previous.tolist(),
    )


def _previous(stream: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(stream, kind="stable")
    result = np.full(len(stream), -1, dtype=np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    result[order[1:][same]] = order[:-1][same]
    return result
