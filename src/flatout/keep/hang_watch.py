"""Watch a job for hangs: heartbeats and stacks -> a `Hang`, once.

Silence alone is not a hang. The ranks' stacks are requested three times in two seconds, and `hang_judge` decides
whether a rank is stuck or only slow. A job that makes progress is never asked for stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flatout.keep.busy import ProcessUsage
from flatout.keep.flight import FlightRecord
from flatout.keep.hang import Hang
from flatout.keep.hang_judge import Examination, Look
from flatout.keep.hang_timeout import HangTimeout
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.peer_board import PeerRank, PeerStatus
from flatout.keep.rank_place import waits_for_others
from flatout.keep.stacks import Stack

_NUM_LOOKS, _BETWEEN_LOOKS_S = 3, 1.0
_SUSPENDED_S = 10.0  # time without a call; calls come a few times per second


class HangWatch:
    """Detects hangs. `ask` returns stacks and `work` a process's work so far; both are called for silent jobs only."""

    def __init__(
        self,
        patience: HangTimeout,
        ask: Callable[[Sequence[HeartbeatSample]], Mapping[str, Stack]],
        work: Callable[[int], ProcessUsage],
        workers: Callable[[HeartbeatSample], Sequence[Stack]] = lambda pulse: (),
        flight: Callable[[Sequence[HeartbeatSample]], Sequence[FlightRecord]] = lambda pulses: (),
        others: Callable[[], Sequence[PeerStatus]] = lambda: (),
    ) -> None:
        """Watch one attempt; `others` returns the status that the job's other nodes report of their ranks."""
        self._patience = patience
        self._ask = ask
        self._work = work
        self._workers = workers
        self._flight = flight
        self._others = others
        self._waits: dict[str, bool] = {}  # by examined rank: whether it waits for other ranks
        self._looks: list[Look] = []
        self._last_s: float | None = None
        self._next_s = 0.0

    def look(self, now: float, ranks: Sequence[HeartbeatSample], *, is_failing: bool = False) -> Hang | None:
        """Return a hang, once. Call this a few times per second. `is_failing`: a rank has reported an error."""
        if self._last_s is not None and now - self._last_s > _SUSPENDED_S:
            self._patience.forgive(now - self._last_s)  # this process was suspended, and probably the job too
            self._looks.clear()
        self._last_s = now
        silences = {pulse.name: self._patience.silence_s(now, pulse) for pulse in ranks}
        present = [pulse for pulse in ranks if not pulse.has_ended]
        longest = max((silences[pulse.name] for pulse in present), default=0.0)
        if not present or longest < self._patience.look_after_s(present):
            self._looks.clear()
            self._waits.clear()
            return None
        if now < self._next_s:
            return None
        self._next_s = now + _BETWEEN_LOOKS_S
        alive = [pulse for pulse in present if pulse.is_alive]
        stacks = dict(self._ask(alive))
        self._looks.append(Look(now, stacks, {pulse.name: self._work(pulse.pid) for pulse in alive}))
        self._waits = {pulse.name: waits_for_others(pulse, stacks.get(pulse.name)) for pulse in alive}
        if len(self._looks) < _NUM_LOOKS:
            return None
        hang = self._examine(ranks, silences, is_failing=is_failing)
        if hang is None and not self._patience.is_just_before(longest):  # the silence must be half as long again
            self._next_s = now + max(longest / 2, _BETWEEN_LOOKS_S)
        return hang

    def _examine(
        self, ranks: Sequence[HeartbeatSample], silences: Mapping[str, float], *, is_failing: bool
    ) -> Hang | None:
        """Judge the ranks by the looks of this silence, and begin with new ones."""
        looks, self._looks = self._looks, []
        examination = Examination(
            looks=looks,
            ranks=tuple(ranks),
            silences=silences,
            patience=self._patience,
            elsewhere=tuple(rank for status in self._others() for rank in status.ranks),
            is_failing=is_failing,
            workers=self._workers,
            flight=self._flight,
        )
        return examination.hang()

    def told(self, ranks: Sequence[HeartbeatSample]) -> list[PeerRank]:
        """Return the status of this node's ranks, for the other nodes."""
        return [
            PeerRank(
                rank=pulse.rank or 0,
                steps=pulse.num_steps,
                phase=pulse.phase,
                sequences=dict(pulse.sequences),
                waits=self._waits.get(pulse.name),
                world_size=pulse.world_size,
                step_s=pulse.block_median_s,
                data_share=pulse.data_share,
                exchange_step=pulse.exchange.step if pulse.exchange is not None else None,
                exposed_s=pulse.exchange.exposed_s if pulse.exchange is not None else None,
                num_checkpoints=pulse.num_checkpoints,
            )
            for pulse in ranks
            if not pulse.has_ended
        ]
