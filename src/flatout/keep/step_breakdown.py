"""Split a step's time outside compute into three classes, in ns, from DDP's timing, a recording or NVML.

If DDP timed the exchange of gradients on all ranks in the same iteration (`inside/liveness/exchange.py`),
`late_rank_wait` and `exposed_communication` follow from it: the exchange ends on all ranks together, so the rank with
the shortest exchange is the late rank. Its time is the transfer, and the additional time of the others is their wait
for it. The steps since then get the median of the last five such iterations. Without DDP, the two classes are shares of
the step in a recording, if there is one. `throttled` comes from NVML's clocks. Time that none of the sources reports
stays unknown, in the class of the steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from flatout.keep.clocks import ClockWatch
from flatout.keep.heartbeats import HeartbeatSample

WAIT, COMMUNICATION, THROTTLED = "late_rank_wait", "exposed_communication", "throttled"
PARTED = (COMMUNICATION, WAIT, THROTTLED)
_TYPICAL_OF = 5  # samples
Basis = Literal["ddp", "recording", "nvml"]


class StepShares(msgspec.Struct, frozen=True, kw_only=True):
    """The means over all ranks' steps in a recording of the same job."""

    num_ranks: int
    communication: float  # share of the step
    wait: float | None  # None: traces of some ranks are missing, so waiting is inside `communication`


class StepComponent(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ns: int
    basis: Basis


class StepBreakdown:
    """The breakdown of one run. `no_clocks` says why `clocks` is None."""

    def __init__(
        self, *, clocks: ClockWatch | None = None, no_clocks: str = "", recorded: StepShares | None = None
    ) -> None:
        self._clocks = clocks
        self._no_clocks = no_clocks
        self._recorded = recorded
        # By rank, ns per step: the exposed time, and the wait in it, which is None if ranks are missing.
        self._samples: deque[dict[int | None, tuple[int, int | None]]] = deque(maxlen=_TYPICAL_OF)
        self._iteration = 0  # iteration of the last sample
        self._ranks: Sequence[HeartbeatSample] = ()

    def begins(self) -> None:
        """Reset for another attempt."""
        self._samples.clear()
        self._iteration, self._ranks = 0, ()

    def look(self, now_ns: int, ranks: Sequence[HeartbeatSample]) -> None:
        if self._clocks is not None:
            self._clocks.look(now_ns)
        if not ranks:
            return
        self._ranks = ranks
        exchanges = [pulse.exchange for pulse in ranks if pulse.exchange is not None]
        iterations = {one.iteration for one in exchanges}
        if len(exchanges) < len(ranks) or len(iterations) > 1 or self._iteration in iterations:
            return  # there is no new sample, or a rank is still writing one
        self._iteration = iterations.pop()
        exposed = [one.exposed_ns * one.per_step for one in exchanges]
        is_whole = all(one.num_ranks == len(ranks) for one in exchanges) and ranks[0].world_size == len(ranks)
        self._samples.append(
            {
                pulse.rank: (value, value - min(exposed) if is_whole else None)
                for pulse, value in zip(ranks, exposed, strict=True)
            }
        )

    def _typical(self, rank: int | None) -> tuple[int, int | None] | None:
        """Return the typical exposed time in ns per step, and the wait in it."""
        found = [sample[rank] for sample in self._samples if rank in sample]
        if not found:
            return None
        waits = [wait for _, wait in found if wait is not None]
        exposed_ns = round(median(value for value, _ in found))
        return exposed_ns, min(round(median(waits)), exposed_ns) if waits else None

    def parts(
        self, pulse: HeartbeatSample, num_steps: int, begin_ns: int, end_ns: int, *, away_ns: int, left_ns: int
    ) -> list[StepComponent]:
        """Return the parts of `num_steps` steps of a rank; they sum to at most `left_ns`.

        `away_ns` is the time that belongs to no step, such as a checkpoint.
        """
        found: list[StepComponent] = []

        def add(name: str, ns: int, basis: Basis) -> None:
            nonlocal left_ns
            part = min(max(ns, 0), left_ns)
            left_ns -= part
            found.append(StepComponent(name=name, ns=part, basis=basis))

        typical = self._typical(pulse.rank)
        recorded = self._recorded
        if typical is not None:
            exposed_ns, wait_ns = typical
            if wait_ns is not None:
                add(WAIT, wait_ns * num_steps, "ddp")
            add(COMMUNICATION, (exposed_ns - (wait_ns or 0)) * num_steps, "ddp")
        elif recorded is not None and recorded.num_ranks == pulse.world_size:
            steps_ns = max(end_ns - begin_ns - away_ns, 0)
            if recorded.wait is not None:
                add(WAIT, round(recorded.wait * steps_ns), "recording")
            add(COMMUNICATION, round(recorded.communication * steps_ns), "recording")
        lost = None if self._clocks is None else self._clocks.lost(pulse.gpu, begin_ns, end_ns)
        if lost is not None:
            add(THROTTLED, round(lost * left_ns), "nvml")
        return found

    def reasons(self) -> dict[str, str]:
        """Return, by class, why it is unknown."""
        found: dict[str, str] = {}
        recorded = self._recorded
        if not self._ranks:
            return found
        world_size = self._ranks[0].world_size
        typical = self._typical(self._ranks[0].rank)
        if typical is not None:
            if typical[1] is None:
                found[WAIT] = (
                    f"Not all ranks of the DDP exchange are visible here, so it is included in {COMMUNICATION}"
                )
        elif recorded is not None and recorded.num_ranks == world_size:
            if recorded.wait is None:
                found[WAIT] = f"The recording lacks the traces of some ranks, so it is included in {COMMUNICATION}"
        else:
            why = "Before DDP's first timed exchange, or if no single DDP spans all ranks, only a --recording shows it"
            if recorded is not None:
                why = f"The recording has {recorded.num_ranks} ranks, but the job has {world_size}"
            found[WAIT] = found[COMMUNICATION] = why
        if not any(pulse.has_gpu for pulse in self._ranks):
            found[THROTTLED] = "No rank uses a GPU"
        elif self._clocks is None:
            found[THROTTLED] = f"The GPUs' clocks could not be read: {self._no_clocks}"
        elif all(pulse.gpu is None for pulse in self._ranks):
            found[THROTTLED] = "torch does not report which GPU a rank uses"
        else:
            found[THROTTLED] = "NVML did not always report the clocks of all ranks' GPUs"
        return found
