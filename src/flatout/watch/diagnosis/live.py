"""Diagnose a job while it runs. In: the heartbeats of its ranks, again and again. Out: findings as they begin and end.

A finding is confirmed by the change point, named once, and named again only while its cause is unknown: only some of
the exchanges of gradients, which show who is late, are timed.

On a host whose cores other programs keep busy, steps become slower for a while without a fault of the job's. There, a
short slowdown that nothing explains is not reported, and a longer one is put down to the other programs, until
something in the job explains it. Where no rank waits longer for a core, they are not named: its cause is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from flatout.keep.heartbeats import HeartbeatSample
from flatout.launch.process_identity import core_wait_s, resident_bytes
from flatout.records.watch import LiveFinding
from flatout.watch.diagnosis.causes import (
    JobParts,
    NamedCause,
    RankParts,
    name_cause,
    overloaded_host,
    ranks_wait_for_cores,
)
from flatout.watch.diagnosis.change_points import BLOCK_STEPS, SHORT_BLOCKS, ChangePoints, Shift
from flatout.watch.diagnosis.exchanges import Exchanges
from flatout.watch.diagnosis.host_counters import HostCountersOfBlock
from flatout.watch.diagnosis.job_steps import JobStep, JobSteps
from flatout.watch.diagnosis.memory_growth import MemoryGrowth
from flatout.watch.diagnosis.rank_times import UNKNOWN, OfRanks, RankTimes, TimesBeforeAndSince
from flatout.watch.diagnosis.work_per_step import WorkPerStep

_HOUR_S = 3600.0
_MOST_ENDED = 20  # ended findings that are kept
_WINDOW_STEPS = 2 * BLOCK_STEPS
SHORT_STEPS = SHORT_BLOCKS * BLOCK_STEPS  # a slowdown without a cause is noise on an overloaded host within these


class LiveDiagnosis:
    """Follows one job.

    `throttle` returns the reasons for a lowered clock by GPU, `other_cores` foreign load, and `idle_cores` what is left
    of this host. `host` reads the counters of ports and storage; None: they are unknown.
    """

    def __init__(
        self,
        throttle: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
        other_cores: Callable[[], float | None] = lambda: None,
        idle_cores: Callable[[], float | None] = lambda: None,
        host: HostCountersOfBlock | None = None,
    ) -> None:
        self._throttle = throttle
        self._other_cores = other_cores
        self._idle_cores = idle_cores
        self._host = host
        self._steps = JobSteps()
        self._changes = ChangePoints()
        self._exchanges = Exchanges()
        self._data = RankTimes()
        self._without_data = RankTimes()
        self._core_waits = RankTimes()
        self._core_wait_s: dict[int, float] = {}  # of each rank, in total
        self._memory = MemoryGrowth()
        self._work = WorkPerStep()
        self._names: tuple[str, ...] = ()  # of the ranks
        self._window: deque[JobStep] = deque(maxlen=_WINDOW_STEPS)
        self._before: JobParts | None = None
        self._open: dict[str, LiveFinding] = {}  # by what found it
        self._is_of_host = False  # the host was overloaded, and nothing in the job explains the slowdown yet
        self._ended: deque[LiveFinding] = deque(maxlen=_MOST_ENDED)
        self._num_in_block = 0
        self._stopped_since_s: float | None = None

    @property
    def findings(self) -> tuple[LiveFinding, ...]:
        """Return those that continue, then those that have ended, the newest first."""
        last_step = self._window[-1].step if self._window else 0
        of_now = [finding for finding in self._open.values() if not self._is_noise(finding, last_step)]
        return (*of_now, *reversed(self._ended))

    def look(self, samples: Sequence[HeartbeatSample], now_s: float) -> tuple[LiveFinding, ...]:
        """Look at the ranks. Return the findings that begin or end now."""
        before = self.findings
        names = tuple(sample.name for sample in samples)
        if names and names != self._names:
            if self._names:
                self._begin_again()
                self._work, self._memory = WorkPerStep(), MemoryGrowth()
            self._names = names
        self._look_for_stops(samples, now_s)
        self._exchanges.add(samples)
        for step in self._steps.new_steps(samples):
            self._add(step, samples)
        states = {(finding.cause, finding.first_step, finding.last_step) for finding in before}
        return tuple(
            finding for finding in self.findings if (finding.cause, finding.first_step, finding.last_step) not in states
        )

    def _add(self, step: JobStep, samples: Sequence[HeartbeatSample]) -> None:
        self._window.append(step)
        self._changes.add(step.step, step.duration_s)
        self._num_in_block += 1
        if self._num_in_block == BLOCK_STEPS:
            self._num_in_block = 0
            self._end_block(samples)
        finding = self._open.get("steps")
        if finding is not None and self._changes.shift is not None:
            lost_s = max(step.duration_s - finding.before_s, 0.0)
            cost = finding.cost_gpu_h + lost_s * len(samples) / _HOUR_S
            self._open["steps"] = msgspec.structs.replace(finding, cost_gpu_h=cost)

    def _begin_again(self) -> None:
        """Learn the step time again: another attempt runs, or the steps do other work. What was slow has ended."""
        finding = self._open.pop("steps", None)
        if finding is not None:
            last_step = self._window[-1].step if self._window else finding.first_step
            self._end(msgspec.structs.replace(finding, last_step=last_step))
        self._changes = ChangePoints()
        self._data.clear()
        self._without_data.clear()
        self._core_waits.clear()
        self._before, self._num_in_block = None, 0
        self._window.clear()

    def _end_block(self, samples: Sequence[HeartbeatSample]) -> None:
        if self._work.changes(samples):
            self._begin_again()
            return
        parts = self._parts(samples)
        shift = self._changes.shift
        if shift is not None:
            self._continue(shift, parts, samples)
        elif "steps" in self._open:
            ended = self._changes.ended[-1]
            finding = self._open.pop("steps")
            self._end(msgspec.structs.replace(finding, last_step=ended.last_step, after_s=ended.after_s))
        if shift is None and not self._changes.is_rising:
            self._before = parts
        self._look_at_memory(samples)

    def _end(self, finding: LiveFinding) -> None:
        """Keep a slowdown that has ended, unless it was noise."""
        if not self._is_noise(finding, finding.last_step or finding.first_step):
            self._ended.append(finding)
        self._is_of_host = False

    def _is_noise(self, finding: LiveFinding, last_step: int) -> bool:
        """Return whether a slowdown up to this step is one of many short ones on an overloaded host."""
        is_short = last_step - finding.first_step + 1 < SHORT_STEPS
        return finding.cause == "unknown" and self._is_of_host and is_short

    def _continue(self, shift: Shift, parts: JobParts, samples: Sequence[HeartbeatSample]) -> None:
        """Begin the finding of a shift, or renew it."""
        finding = self._open.get("steps")
        if finding is None:
            num_steps = self._window[-1].step - shift.first_step + 1
            lost_s = (shift.after_s - shift.before_s) * num_steps * len(samples)
            cause = self._cause(*self._before_and_since(shift, parts))
            self._is_of_host = cause.cause == "unknown" and overloaded_host(parts) is not None
            self._open["steps"] = LiveFinding(
                cause=cause.cause,
                ranks=cause.ranks,
                first_step=shift.first_step,
                last_step=None,
                before_s=shift.before_s,
                after_s=shift.after_s,
                cost_gpu_h=lost_s / _HOUR_S,
                evidence=cause.evidence,
            )
            return
        finding = msgspec.structs.replace(finding, after_s=shift.after_s)
        if finding.cause == "unknown" or self._is_of_host:
            finding = self._named_again(finding, *self._before_and_since(shift, parts))
        self._open["steps"] = finding

    def _named_again(self, finding: LiveFinding, before: JobParts | None, since: JobParts) -> LiveFinding:
        """Return the finding with the cause that is known now; the host stays named until something in the job is."""
        cause = self._cause(before, since)
        if cause.cause != "unknown":
            self._is_of_host = False
            return msgspec.structs.replace(finding, cause=cause.cause, ranks=cause.ranks, evidence=cause.evidence)
        host = overloaded_host(since) if self._is_of_host else None
        if host is None or before is None or self._is_noise(finding, self._window[-1].step):
            return finding
        is_waiting = ranks_wait_for_cores(before, since)
        if is_waiting is False:
            self._is_of_host = False
            return msgspec.structs.replace(finding, cause="unknown", evidence={})
        if is_waiting is None and self._core_wait_s:  # it will be known after more steps
            return finding
        return msgspec.structs.replace(finding, cause=host.cause, evidence=host.evidence)

    def _cause(self, before: JobParts | None, since: JobParts) -> NamedCause:
        return NamedCause(cause="unknown") if before is None else name_cause(before, since)

    def _before_and_since(self, shift: Shift, parts: JobParts) -> tuple[JobParts | None, JobParts]:
        """Return what the job did before a shift, None if that is unknown, and since."""
        if self._before is None:
            return None, parts
        slower_s = shift.after_s - shift.before_s
        waits = self._data_waits(shift)
        cores = self._core_waits.compared(shift.first_step, slower_s)
        # Without the waits for batches, a rank that comes late because it waits for one would be called slow.
        exposed = behind = UNKNOWN
        if waits is not UNKNOWN:
            exposed = self._exchanges.compared(shift.first_step, slower_s)
            behind = self._exchanges.compared_behind(shift.first_step, slower_s)
        known = {"exposed_s": exposed, "behind_s": behind, "data_s": waits, "core_wait_s": cores}
        before = _with_times(self._before, shift.before_s, {part: times.before_s for part, times in known.items()})
        since = _with_times(parts, shift.after_s, {part: times.since_s for part, times in known.items()})
        return before, since

    def _data_waits(self, shift: Shift) -> TimesBeforeAndSince:
        """Return each rank's wait for batches before a slowdown and since.

        Bursts of slow batches have waits that differ so much that they are known late. What remains of the step then
        differs little, so that the wait is known from it.
        """
        slower_s = shift.after_s - shift.before_s
        waits = self._data.compared(shift.first_step, slower_s)
        if waits is not UNKNOWN:
            return waits
        others = self._without_data.compared(shift.first_step, slower_s)
        if others is UNKNOWN:
            return UNKNOWN
        return TimesBeforeAndSince(
            before_s={rank: shift.before_s - other_s for rank, other_s in others.before_s.items()},
            since_s={rank: shift.after_s - other_s for rank, other_s in others.since_s.items()},
        )

    def _parts(self, samples: Sequence[HeartbeatSample]) -> JobParts:
        """Return the parts of the last block, and note its waits for batches."""
        block = list(self._window)[-BLOCK_STEPS:]
        ranks = [sample.rank or 0 for sample in samples]
        step_s = median(step.duration_s for step in block)
        waits = {rank: median(step.data_s.get(rank, 0.0) for step in block) for rank in ranks}
        self._data.add(block[0].step, waits)
        self._without_data.add(block[0].step, {rank: step_s - wait_s for rank, wait_s in waits.items()})
        self._note_core_waits(block[0].step, samples)
        throttle = self._throttle()
        parts = {
            sample.rank or 0: RankParts(throttle=throttle.get(sample.gpu or "", ()), is_stopped=sample.is_stopped)
            for sample in samples
        }
        return JobParts(
            step_s=step_s,
            ranks=parts,
            other_cores=self._other_cores(),
            idle_cores=self._idle_cores(),
            port_errors=self._host.port_errors() if self._host is not None else None,
            read_latencies_s=self._host.read_latencies_s() if self._host is not None else {},
        )

    def _note_core_waits(self, first_step: int, samples: Sequence[HeartbeatSample]) -> None:
        """Note how long each rank waited for a core per step of the last block."""
        totals = {sample.rank or 0: core_wait_s(sample.pid) if sample.is_local else None for sample in samples}
        known = {rank: total_s for rank, total_s in totals.items() if total_s is not None}
        if len(known) == len(samples) and known.keys() == self._core_wait_s.keys():
            waits = {rank: max(total_s - self._core_wait_s[rank], 0.0) for rank, total_s in known.items()}
            self._core_waits.add(first_step, {rank: wait_s / BLOCK_STEPS for rank, wait_s in waits.items()})
        self._core_wait_s = known

    def _look_for_stops(self, samples: Sequence[HeartbeatSample], now_s: float) -> None:
        """Find ranks that a signal has stopped: they make no step, so no change point shows it."""
        stopped = tuple(sample.rank or 0 for sample in samples if sample.is_stopped)
        step = max((sample.num_steps for sample in samples), default=0)
        finding = self._open.get("stopped")
        if stopped and finding is None:
            self._stopped_since_s = now_s
            self._open["stopped"] = LiveFinding(
                cause="stopped",
                ranks=stopped,
                first_step=step,
                last_step=None,
                before_s=0.0,
                after_s=0.0,
                cost_gpu_h=0.0,
            )
        elif finding is not None and self._stopped_since_s is not None:
            cost = (now_s - self._stopped_since_s) * len(samples) / _HOUR_S
            finding = msgspec.structs.replace(finding, cost_gpu_h=cost)
            if stopped:
                self._open["stopped"] = finding
            else:
                del self._open["stopped"]
                self._ended.append(msgspec.structs.replace(finding, last_step=step))

    def _look_at_memory(self, samples: Sequence[HeartbeatSample]) -> None:
        memory = {
            sample.rank or 0: value
            for sample in samples
            if sample.is_local and (value := resident_bytes(sample.pid)) is not None
        }
        self._memory.add(memory)
        growing = self._memory.growing()
        step = self._window[-1].step
        if growing and "memory" not in self._open:
            step_s = self._window[-1].duration_s
            self._open["memory"] = LiveFinding(
                cause="memory",
                ranks=tuple(sorted(growing)),
                first_step=step,
                last_step=None,
                before_s=step_s,
                after_s=step_s,
                cost_gpu_h=0.0,
                evidence={"bytes_per_step": max(growing.values()) / BLOCK_STEPS},
            )
        elif not growing and "memory" in self._open:
            self._ended.append(msgspec.structs.replace(self._open.pop("memory"), last_step=step))


def _with_times(parts: JobParts, step_s: float, known: Mapping[str, OfRanks]) -> JobParts:
    """Return the parts with the job's step time, and what is known of each rank's waits, by their names."""
    ranks = {
        rank: msgspec.structs.replace(of_rank, **{part: times.get(rank) for part, times in known.items()})
        for rank, of_rank in parts.ranks.items()
    }
    return msgspec.structs.replace(parts, step_s=step_s, ranks=ranks)
