"""The input of the rules: the job's seconds per step, in pools from which each second is claimed only once.

`charged` is the time of a rank's step by part, with each second of waiting counted under the part of the late rank
that caused it; the mean over the ranks is the pool of that part. Rules of specific findings come first and claim their
seconds; general rules get the rest. Lateness in compute, or of unknown cause, has a separate pool for each late rank.
Without steps, the entire recording counts as one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.recorder import RecorderCost, Untraced, recorder_cost
from flatout.inside.protocol import StepKind
from flatout.records.change import JobFacts
from flatout.records.diagnosis import PART_NAMES, Part
from flatout.records.job import JobAttribution
from flatout.records.job_log import JobLog, StallCause
from flatout.records.stall_trace import StallTrace
from flatout.records.timeline import NUM_PARTS, RankFacts, RankTimeline

# A specific finding claims the lateness in these parts; `straggler` claims the lateness in any other part.
PARTS_WITH_FINDING = frozenset(
    {
        Part.DATA_LOADING,
        Part.CHECKPOINT,
        Part.ALLOCATOR,
        Part.HOST_SYNC,
        Part.HOST_LAUNCH,
        Part.LAUNCH_LATENCY,  # launch latency of work that was launched in time: too small for a finding
        Part.TRANSFER,
        Part.COMMUNICATION_UNSPLIT,
        Part.MEMORY_COPY,
    }
)
MIN_STALL_SHARE = 0.5  # of the regular step; a traced step with a longer stall is not one of the regular steps
MIN_UNKNOWN_STALLS = 3
MIN_SHARE_OF_STALL = 0.5  # of the median stall of unknown cause, for a traced step to be one
MIN_TRACED_SHARE = 0.9  # share of the job that its traces represent; below this, the data quality says so
HOST_PARTS = (Part.HOST_SYNC, Part.HOST_LAUNCH)
_IDLE_PARTS = (Part.HOST_LAUNCH, Part.HOST_SYNC, Part.LAUNCH_LATENCY, Part.UNATTRIBUTED)
_PART_OF_STALL = {
    StallCause.LOADER_START: Part.DATA_LOADING,
    StallCause.LOADER: Part.DATA_LOADING,
    StallCause.CHECKPOINT: Part.CHECKPOINT,
}


def has_own_finding(part: str) -> bool:
    return part in PART_NAMES and Part(PART_NAMES.index(part)) in PARTS_WITH_FINDING


class DiagnosisContext:
    """The job to diagnose. All times are in seconds per step unless stated otherwise."""

    def __init__(
        self,
        job: JobAttribution,
        untraced: Untraced | None = None,
        peaks: Mapping[str, float] | None = None,
        job_facts: JobFacts | None = None,
        log: JobLog | None = None,
        stall_trace: StallTrace | None = None,
    ) -> None:
        self.stalled_steps = _stalled_steps(job, log)
        self.job = _without_steps(job, self.stalled_steps)
        self.job_facts = job_facts or JobFacts()  # facts from a recording that traces do not contain
        self.log = log  # the step log of a recording; None: a plain trace
        self.stall_trace = stall_trace  # the second trace of a recording
        self.measured_peaks = peaks  # FLOP/s by operand type of the job's GPU, where `flatout bench` measured it
        self.ranks: tuple[RankTimeline, ...] = job.timelines
        self.num_steps = max((len(t.steps) for t in self.ranks), default=0)
        self._num_regular = self.num_steps - len(self.stalled_steps)  # traced steps that `own` and `blamed` refer to
        self.untraced = untraced
        self.own = np.array([self._own(t) for t in self.ranks])
        self.step_s = float(self.own.sum(axis=1).mean()) if len(self.ranks) else 0.0
        self.row = {t.rank: row for row, t in enumerate(self.ranks)}  # in `own` and `charged`
        self.blamed = self._blamed()
        # late rank -> (waiting rank, part) -> seconds per step
        self.waits_for: dict[int, dict[tuple[int, str], float]] = defaultdict(dict)
        for (waiting, late, part), seconds in self.blamed.items():
            self.waits_for[late][waiting, part] = seconds
        self.charged = self._charged()
        self._pools: dict[Part, float] = {part: float(self.charged[:, part].mean()) for part in Part}
        self._lateness = self._late_pools()
        self._claimed_s = 0.0
        self.host_traced_s = sum(self._pools[part] for part in HOST_PARTS)
        self._kept_share = 1.0  # share of the host-bound idle time, without the recorder
        self.recorder = self._discount_recorder()
        self.stalled_s = self._discount_stalls()  # in the traced steps, reported from the step log
        # The time of a traced step without its stalls and the recorder: the costs from the traces add up to at most it.
        self._traced_regular_s = max(self.step_s - self.stalled_s - self.recorder.idle_s, 0.0)
        self._changing_s = 0.0

    @property
    def mean_step_s(self) -> float:
        """Return the step time to which shares refer: the job's mean step, or the traced step without a step log."""
        return self.step_s if self.log is None else self.log.step_s

    def cost_in_job(self, cost_s: float) -> float:
        """Convert a cost found in the traces to a cost per step of the job.

        The traced steps represent the job's steps without stalls, whether these take longer or shorter, so costs are
        converted in proportion: together they are at most the job's mean step without stalls.
        """
        if self.log is None or self._traced_regular_s <= 0:
            return cost_s
        explained_s = max(self.log.without_stalls_s - self._changing_s, 0.0)
        return cost_s * explained_s / self._traced_regular_s

    def claim_change(self, seconds: float) -> float:
        """Claim seconds per step of the job's steps without stalls, by which they change in the course of the job.

        The costs from the traces share the rest.
        """
        assert self.log is not None
        got = min(max(seconds, 0.0), self.log.without_stalls_s - self._changing_s)
        self._changing_s += got
        return got

    def in_trace(self, job_s: float) -> float:
        """Convert a cost per step of the job to one of the traced step, the inverse of `cost_in_job`."""
        factor = self.cost_in_job(1.0)
        return job_s / factor if factor > 0 else 0.0

    def claim_idle(self, seconds: float) -> float:
        """Claim up to `seconds` of idle time of any kind, which the recorder can turn into one another."""
        claimed_s = 0.0
        for part in _IDLE_PARTS:
            claimed_s += self.claim(part, seconds - claimed_s)
        return claimed_s

    def share_of_job(self, cost_s: float) -> float:
        """Return a cost found in the traces as a share of the step."""
        return self.cost_in_job(cost_s) / self.mean_step_s

    @property
    def has_gpu(self) -> bool:
        return any(t.has_gpu for t in self.ranks)

    def facts(self, rank: int) -> RankFacts:
        found = self.ranks[self.row[rank]].facts
        assert found is not None
        return found

    @property
    def period(self) -> str:
        """Return the period that a cost refers to, for titles: a step, or the entire recording if it has no steps."""
        return "per step" if self.num_steps else "in total"

    def per_step(self, total: float) -> float:
        return total / (self.num_steps or 1)

    def available(self, part: Part) -> float:
        """Return the unclaimed seconds per step of a part, the mean over the ranks."""
        return self._pools[part]

    def claim(self, part: Part, seconds: float) -> float:
        """Claim up to `seconds` from the part's pool and return the seconds that were claimed."""
        got = min(max(seconds, 0.0), self._pools[part])
        self._pools[part] -= got
        self._claimed_s += got
        return got

    def late_ranks(self) -> list[int]:
        """Return the ranks that others wait for because of compute or an unknown cause, the latest rank first."""
        return sorted(self._lateness, key=lambda rank: -self._lateness[rank])

    def lateness(self, rank: int) -> float:
        """Return the unclaimed seconds per step that others wait for this rank: the maximum over the ranks."""
        return self._lateness.get(rank, 0.0)

    def claim_lateness(self, rank: int, seconds: float) -> float:
        lateness = self.lateness(rank)
        # This pool is the maximum over the waiting ranks, and the other pools are means over all ranks: together they
        # must not exceed the step.
        got = min(max(seconds, 0.0), lateness, max(self._traced_regular_s - self._claimed_s, 0.0))
        self._lateness[rank] = lateness - got
        self._claimed_s += got
        return got

    def straggling_causes(self, rank: int) -> dict[str, float]:
        """Return those of `lateness_causes` that no other finding claims."""
        return {part: s for part, s in self.lateness_causes(rank).items() if self.is_straggling(part)}

    def lateness_causes(self, rank: int) -> dict[str, float]:
        """Return the seconds per step that others wait for this rank, by part: the mean, largest first."""
        sums: dict[str, float] = defaultdict(float)
        waits = self.waits_for[rank]
        num_waiting = len({waiting for (waiting, _), s in waits.items() if s > 0})
        for (_, part), seconds in waits.items():
            sums[part] += seconds / num_waiting
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def ranks_with_most(self, *parts: Part, share: float = 0.5) -> tuple[int, ...]:
        """Return the ranks that spend at least `share` of the maximum over all ranks in the parts."""
        spent = self.own[:, list(parts)].sum(axis=1)
        if not len(spent) or spent.max() <= 0:
            return ()
        return tuple(t.rank for t, s in zip(self.ranks, spent, strict=True) if s >= share * spent.max())

    def busiest_rank(self, *parts: Part, among: Sequence[int] | None = None) -> int:
        """Return the rank that spends the most time in the parts, among all or some ranks."""
        spent = self.own[:, list(parts)].sum(axis=1)
        if among is not None:
            spent = np.where([t.rank in among for t in self.ranks], spent, -1.0)
        return self.ranks[int(spent.argmax())].rank

    def busy_s(self, rank: int) -> float:
        """Return the seconds per step in which the rank's GPU has work that a faster host cannot shorten.

        Copies that are already claimed are excluded.
        """
        parts = [Part.COMPUTE, Part.TRANSFER, Part.COMMUNICATION_UNSPLIT, Part.BUBBLE]
        return float(self.own[self.row[rank], parts].sum()) + self._pools[Part.MEMORY_COPY]

    def host_pace_s(self, rank: int) -> float:
        """Return the seconds per step that the rank's host needs if nothing blocks it, without the recorder."""
        facts = self.facts(rank)
        running = self.per_step(max(facts.host_s - facts.host_blocked_s, 0.0))
        return max(running - self.recorder.host_s, 0.0)

    def as_traced(self, cost_s: float) -> float:
        """Return a cost of host-bound idle time with the recorder's share in it, never below the cost without."""
        traced_s = cost_s / self._kept_share if self._kept_share > 0 else self.host_traced_s
        return max(traced_s, self.cost_in_job(cost_s))

    def claim_lost_lead(self, rank: int, *, blocked_s: float, freed_s: float = 0.0) -> float:
        """Claim the host-bound idle time that arises because a blocked host lost its lead over the GPU.

        If the host would keep its lead without `freed_s` seconds per step of its work, blocking causes all of that
        idle time. Otherwise it causes as much as the host was blocked while the GPU worked (`blocked_s`).
        """
        left = sum(self.available(part) for part in HOST_PARTS)
        keeps_lead = self.host_pace_s(rank) - freed_s < self.busy_s(rank)
        wanted = left if keeps_lead else min(max(blocked_s, 0.0), left)
        if left <= 0:
            return 0.0
        return sum(self.claim(part, self.available(part) * wanted / left) for part in HOST_PARTS)

    def _own(self, timeline: RankTimeline) -> NDArray[np.float64]:
        if not self.stalled_steps:
            total = self.job.parts_between_ns(timeline.rank, timeline.first_step_ns, timeline.window_end_ns)
            return total / 1e9 / (len(timeline.steps) or 1)
        regular = [step for step in timeline.steps if step.number not in self.stalled_steps]
        parts = [self.job.parts_between_ns(timeline.rank, step.start_ns, step.end_ns) for step in regular]
        mean: NDArray[np.float64] = np.sum(parts, axis=0) / 1e9 / max(len(regular), 1)
        return mean

    def _blamed(self) -> dict[tuple[int, int, str], float]:
        sums: dict[tuple[int, int, str], float] = defaultdict(float)
        for piece in self.job.slices:
            if piece.step is not None or not self.num_steps:
                seconds = piece.wait_ns / 1e9 / max(self._num_regular, 1)
                sums[piece.waiting_rank, piece.blamed_rank, piece.part] += seconds
        return dict(sums)

    def _charged(self) -> NDArray[np.float64]:
        charged = self.own.copy()
        row = self.row
        for (waiting, _, part), seconds in self.blamed.items():
            if has_own_finding(part):
                charged[row[waiting], PART_NAMES.index(part)] += seconds
                charged[row[waiting], Part.WAIT] -= seconds
        return charged if len(charged) else np.zeros((1, NUM_PARTS))

    def waits_for_own_devices_s(self, rank: int) -> float:
        """Return the seconds per step in which a GPU of the rank idles while another GPU of the rank works.

        The mean over its GPUs; 0 for a rank with one GPU.
        """
        timeline = self.ranks[self.row[rank]]
        if not timeline.devices:
            return 0.0
        of_rank = self.job.segments[rank].between_ns(timeline.first_step_ns, timeline.window_end_ns)[Part.WAIT]
        return max(float(self.own[self.row[rank], Part.WAIT]) - self.per_step(int(of_rank) / 1e9), 0.0)

    def is_straggling(self, part: str) -> bool:
        """Whether lateness in this part is not claimed by any other finding.

        Lateness from before the recording occurs once, not in each step: it counts only with at most one step.
        """
        return not has_own_finding(part) and (part in PART_NAMES or self.num_steps <= 1)

    def _late_pools(self) -> dict[int, float]:
        by_pair: dict[tuple[int, int], float] = defaultdict(float)
        for (waiting, late, part), seconds in self.blamed.items():
            if self.is_straggling(part):
                by_pair[waiting, late] += seconds
        pools: dict[int, float] = {}
        for (_, late), seconds in by_pair.items():
            pools[late] = max(pools.get(late, 0.0), seconds)
        return pools

    @property
    def traced_share(self) -> float:
        """Return the share of the job that its traces represent: its steps without stalls."""
        if self.log is None or self.log.step_s <= 0:
            return 1.0
        return self.log.without_stalls_s / self.log.step_s

    def _discount_stalls(self) -> float:
        """Take the stalls in the traced steps out of all pools; return their seconds per traced step.

        A loader's start is in the part of data loading, a checkpoint in its own part; other stalls can be in any part.
        """
        if self.log is None or not self.num_steps or self.step_s <= 0:
            return 0.0
        traced = _first_traced(self.log)[-self.num_steps :]  # without a start transient, which is not analysed
        by_part: dict[Part | None, float] = defaultdict(float)
        for stall in self.log.stalls:
            if stall.step in traced and stall.step not in self.stalled_steps:
                by_part[_PART_OF_STALL.get(stall.cause)] += stall.excess_s / self._num_regular
        before = sum(self._pools.values())
        for part in (Part.DATA_LOADING, Part.CHECKPOINT):
            self._pools[part] -= min(by_part[part], self._pools[part])
        left = sum(self._pools.values())
        kept = max(left - by_part[None], 0.0) / left if left > 0 else 1.0
        for part in Part:
            self._pools[part] *= kept
        for rank in self._lateness:
            self._lateness[rank] *= kept
        return before - sum(self._pools.values())

    def _typical_step_s(self) -> float:
        """Return the mean traced step, or the median one if a spike makes the mean longer than it."""
        if not self.num_steps:
            return self.step_s
        by_place: list[list[int]] = [[] for _ in range(self.num_steps)]
        for timeline in self.ranks:
            for place, step in enumerate(timeline.steps):
                if step.number not in self.stalled_steps:
                    by_place[place].append(step.end_ns - step.start_ns)
        median_s = float(np.median([np.mean(durations) for durations in by_place if durations])) / 1e9
        return min(median_s, self.step_s)

    def _discount_recorder(self) -> RecorderCost:
        if self.host_traced_s <= 0 or not self.ranks:
            return RecorderCost(idle_s=0.0, host_s=0.0, source="assumed")
        facts = self.facts(self.busiest_rank(*HOST_PARTS))
        cost = recorder_cost(facts, self.num_steps or 1, self.host_traced_s, self._typical_step_s(), self.untraced)
        self._kept_share = 1 - cost.idle_s / self.host_traced_s
        for part in HOST_PARTS:
            self._pools[part] *= self._kept_share
        return cost


def _first_traced(log: JobLog) -> list[int]:
    """Return the numbers of the steps in the first trace window, without those of a stall's window."""
    traced = [int(number) for number, kind in zip(log.number, log.kind, strict=True) if kind == StepKind.TRACED]
    return [number for place, number in enumerate(traced) if number == traced[0] + place]


def _stalled_steps(job: JobAttribution, log: JobLog | None) -> frozenset[int]:
    """Return the numbers of the traced steps that stalled, as the step log shows; none if all of them did."""
    traced = {step.number for timeline in job.timelines for step in timeline.steps}
    if log is None or not traced <= set(_first_traced(log)):
        return frozenset()
    stalled_s: dict[int, float] = defaultdict(float)
    for stall in log.stalls:
        stalled_s[stall.step] += stall.excess_s
    stalled = {number for number in traced if stalled_s[number] >= MIN_STALL_SHARE * log.regular_s}
    stalled |= _stalled_unseen(traced, log)
    remaining = [{step.number for step in timeline.steps} - stalled for timeline in job.timelines]
    return frozenset(stalled) if all(remaining) else frozenset()


def _stalled_unseen(traced: set[int], log: JobLog) -> set[int]:
    """Return the traced steps that seem to have stalled for an unknown cause, as other steps of the job did.

    The recorder prolongs each traced step, so the log shows no stall of unknown cause there. But it prolongs all of
    them alike: a step that is longer than another one by as much as a stall takes is one.
    """
    unknown_s: dict[int, float] = defaultdict(float)
    for stall in log.stalls:
        if stall.cause == StallCause.UNKNOWN:
            unknown_s[stall.step] += stall.excess_s
    if len(unknown_s) < MIN_UNKNOWN_STALLS or not traced:
        return set()
    duration_s = dict(zip(log.number.tolist(), np.nanmean(log.duration_s, axis=0).tolist(), strict=True))
    shortest_s = min(duration_s[number] for number in traced)
    least_s = MIN_SHARE_OF_STALL * float(np.median(list(unknown_s.values())))
    return {number for number in traced if duration_s[number] - shortest_s >= least_s}


def _without_steps(job: JobAttribution, stalled: frozenset[int]) -> JobAttribution:
    """Return the job without the waits in these steps."""
    if not stalled:
        return job
    return msgspec.structs.replace(job, slices=tuple(piece for piece in job.slices if piece.step not in stalled))
