"""Judge whether a silent job hangs, and which rank is missing: three polls of its ranks -> a `Hang`, or None.

A rank whose stack changes, that computes, or that reads or writes is slow, not stuck, and so are the ranks that wait
for it, up to a ceiling; a limit set by the user applies regardless of a rank's activity. A rank that has begun fewer
collectives than the others of its group is late: the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from flatout.keep.busy import ProcessUsage
from flatout.keep.flight import FlightRecord, collective
from flatout.keep.hang import ENDED, LEFT, STOPPED, Hang, RankState
from flatout.keep.hang_timeout import HangTimeout
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.peer_board import PeerRank
from flatout.keep.rank_place import collective_of, is_in_debugger, phase_of, waits_for_others
from flatout.keep.stacks import Frame, Stack

_BUSY_CORES, _BUSY_BYTES = 0.1, 65536  # on an oversubscribed machine, each process gets a small share
Progress = Literal["none", "busy", "moving"]  # busy: it works in one place; moving: its stack changes


class Look(NamedTuple):
    """The findings of one poll, by process name."""

    at_s: float
    stacks: Mapping[str, Stack]
    usage: Mapping[str, ProcessUsage]


class Missing(NamedTuple):
    """The ranks that others wait for, and the collective that they have not reached."""

    names: frozenset[str]
    group: str | None
    sequence: int | None


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Several polls of the ranks of a silent job, within seconds. `elsewhere` are the ranks on other nodes."""

    looks: Sequence[Look]
    ranks: tuple[HeartbeatSample, ...]
    silences: Mapping[str, float]
    patience: HangTimeout
    elsewhere: tuple[PeerRank, ...]
    is_failing: bool
    workers: Callable[[HeartbeatSample], Sequence[Stack]]
    flight: Callable[[Sequence[HeartbeatSample]], Sequence[FlightRecord]]

    def hang(self) -> Hang | None:
        """Return the hang; None if the job is only slow, suspended, or judged by another node."""
        ranks = self._ranks_that_count()
        if not ranks or self._is_suspended(ranks) or self._is_debugged(ranks):
            return None
        missing = self._missing(ranks)
        is_elsewhere = not missing.names and max(pulse.world_size for pulse in ranks) > len(ranks)
        if is_elsewhere and not self._all_wait_elsewhere():
            return None  # the missing rank is on another node, which judges it: it may be in a long evaluation
        if not missing.names:
            missing = missing._replace(names=frozenset(self._odd_ones_out(ranks)))
        blamed = [pulse for pulse in ranks if pulse.name in missing.names] or list(ranks)
        limits_s = self._limits_s(ranks, blamed, missing, is_elsewhere=is_elsewhere)
        if limits_s is None:
            return None
        is_within_limit = [self.silences[pulse.name] < limit_s for pulse, limit_s in zip(blamed, limits_s, strict=True)]
        if any(is_within_limit):
            return None
        return self._report(ranks, missing, max(limits_s))

    def _is_suspended(self, ranks: Sequence[HeartbeatSample]) -> bool:
        alive = [pulse for pulse in ranks if pulse.is_alive]
        return bool(alive) and all(pulse.is_stopped for pulse in alive)

    def _is_debugged(self, ranks: Sequence[HeartbeatSample]) -> bool:
        return any(is_in_debugger(self._stack(pulse)) for pulse in ranks)

    def _all_wait_elsewhere(self) -> bool:
        """Whether all ranks known on other nodes wait for others; true if none is known."""
        return all(rank.waits for rank in self.elsewhere)

    def _ranks_that_count(self) -> tuple[HeartbeatSample, ...]:
        """Exclude the ranks that have ended if none of the others waits: they are busy with their own work."""
        if any(self._waits(pulse) for pulse in self.ranks):
            return self.ranks
        return tuple(pulse for pulse in self.ranks if pulse.is_alive)

    def _stack(self, pulse: HeartbeatSample) -> Stack | None:
        return self.looks[-1].stacks.get(pulse.name)

    def _waits(self, pulse: HeartbeatSample) -> bool:
        return pulse.is_alive and waits_for_others(pulse, self._stack(pulse))

    def _missing(self, ranks: Sequence[HeartbeatSample]) -> Missing:
        names, group, sequence = late_by_count(ranks, [rank.sequences for rank in self.elsewhere])
        names = names or {pulse.name for pulse in ranks if pulse.is_stopped}
        names = names or {pulse.name for pulse in ranks if not waits_for_others(pulse, self._stack(pulse))}
        return Missing(frozenset(names), group, sequence)

    def _odd_ones_out(self, ranks: Sequence[HeartbeatSample]) -> set[str]:
        calls = {pulse.name: collective_of(self._stack(pulse)) for pulse in ranks}
        return _odd_one_out(ranks, calls, self.looks[-1].stacks)

    def _limits_s(
        self,
        ranks: Sequence[HeartbeatSample],
        blamed: Sequence[HeartbeatSample],
        missing: Missing,
        *,
        is_elsewhere: bool,
    ) -> list[float] | None:
        """Return how long each blamed rank may be silent; None if a rank makes progress and nobody waits for it."""
        num_known = len(ranks) + len(self.elsewhere)
        # A timeout learned from steps does not apply to a rank on which no node reports.
        is_unknown = is_elsewhere and max(pulse.world_size for pulse in ranks) > num_known
        others_wait = any(self._waits(pulse) for pulse in ranks if pulse.name not in missing.names)
        limits_s = []
        for pulse in blamed:
            phase = "network" if is_unknown else phase_of(pulse, self._stack(pulse))
            # The launcher will notice a failed rank and end the other ranks.
            is_witnessed = num_known > 1 and self._stack(pulse) is not None and not self.is_failing
            limit_s = self.patience.hangs_after_s(phase, ranks, is_witnessed=is_witnessed)
            progress = self._progress(pulse, missing)
            if progress != "none" and not self.patience.is_fixed:
                if pulse.name not in missing.names or not others_wait:
                    return None
                limit_s = max(limit_s, self.patience.ceiling_s(phase, is_moving=progress == "moving"))
            limits_s.append(limit_s)
        return limits_s

    def _progress(self, pulse: HeartbeatSample, missing: Missing) -> Progress:
        """Return the rank's activity between the polls.

        A wait for others, which can keep a core busy, does not count.
        """
        if not pulse.is_alive or pulse.is_stopped:
            return "none"
        stacks = [look.stacks[pulse.name] for look in self.looks if pulse.name in look.stacks]
        places = {tuple((frame.file, frame.function) for frame in stack.frames) for stack in stacks}
        if len(places) > 1:
            return "moving"
        first, last = self.looks[0], self.looks[-1]
        if pulse.name not in first.usage or pulse.name not in last.usage:
            return "none"
        before, after = first.usage[pulse.name], last.usage[pulse.name]
        if after.moved_since(before) > _BUSY_BYTES:
            return "busy"
        is_waiting = pulse.name not in missing.names or self._waits(pulse)
        computes = after.busy_cores(before, last.at_s - first.at_s) > _BUSY_CORES
        return "busy" if computes and not is_waiting else "none"

    def _report(self, ranks: Sequence[HeartbeatSample], missing: Missing, limit_s: float) -> Hang:
        of_workers = {
            pulse.name: self.workers(pulse) if pulse.name in missing.names and pulse.phase == "data" else ()
            for pulse in ranks
        }
        states = tuple(self._state(pulse, missing, of_workers[pulse.name]) for pulse in ranks)
        recorded = collective(self.flight(ranks), missing.group, missing.sequence)
        stacks = {pulse.rank or 0: (pulse.name, stack) for pulse in ranks if (stack := self._stack(pulse)) is not None}
        return Hang(
            ranks=states,
            late=tuple(state.rank for state in states if state.is_late),
            group=missing.group,
            sequence=missing.sequence,
            operation=recorded.describe() if recorded is not None else None,
            silence_s=max(self.silences[pulse.name] for pulse in ranks),
            limit_s=limit_s,
            step=max(pulse.num_steps for pulse in ranks),
            stacks={rank: _all_threads(stack, of_workers[name]) for rank, (name, stack) in stacks.items()},
            places={rank: tuple(str(frame) for frame in stack.frames) for rank, (_, stack) in stacks.items()},
        )

    def _state(self, pulse: HeartbeatSample, missing: Missing, workers: Sequence[Stack]) -> RankState:
        stack = self._stack(pulse)
        own = stack.user_frame() if stack is not None else None
        # A worker whose innermost frame is in or near the user's code is probably at work, not waiting for work.
        by_depth = sorted(workers, key=lambda worker: worker.depth())
        worker_frames = [frame for worker in by_depth if (frame := worker.user_frame()) is not None]
        is_late = pulse.name in missing.names
        return RankState(
            rank=pulse.rank or 0,
            phase=_phase(pulse, stack),
            is_late=is_late,
            sequence=pulse.sequences.get(missing.group) if missing.group is not None else None,
            call=collective_of(stack),
            frame=str(own) if own is not None else None,
            innermost=str(stack.frames[0]) if stack is not None and stack.frames else None,
            worker_frame=str(worker_frames[0]) if worker_frames else None,
            silence_s=self.silences[pulse.name],
            is_busy=is_late and self._progress(pulse, missing) != "none",
        )


def late_by_count(
    ranks: Sequence[HeartbeatSample], elsewhere: Sequence[Mapping[str, int]] = ()
) -> tuple[set[str], str | None, int | None]:
    """Return the ranks that began fewer collectives of a group than others, the group, and the pending number.

    `elsewhere`: the same counts for ranks on other nodes; these nodes report their own late ranks. A rank without a
    process is late, regardless of what it had begun.
    """
    dead = {pulse.name for pulse in ranks if not pulse.is_alive}
    first_pending: tuple[str | None, int | None] = (None, None)  # of a group without a late rank
    for group in sorted({group for pulse in ranks for group in pulse.sequences}):
        counts = {pulse.name: pulse.sequences[group] for pulse in ranks if group in pulse.sequences}
        counts_elsewhere = [other[group] for other in elsewhere if group in other]
        highest = max([*counts.values(), *counts_elsewhere])
        behind = {name for name, count in counts.items() if count < highest}
        if behind:
            return dead or behind, group, min(counts.values()) + 1
        if highest and first_pending[0] is None:
            first_pending = (group, highest)
    return dead, *first_pending


def _odd_one_out(
    ranks: Sequence[HeartbeatSample], calls: Mapping[str, str | None], stacks: Mapping[str, Stack]
) -> set[str]:
    """Return the ranks in the collective with the fewest ranks, when all ranks wait, but in different collectives.

    In a tie, the ranks in the backward pass are not the odd ones.
    """
    places: dict[tuple[str | None, Frame | None], set[str]] = {}
    for pulse in ranks:
        stack = stacks.get(pulse.name)
        places.setdefault((calls[pulse.name], stack.user_frame() if stack else None), set()).add(pulse.name)
    if len(places) < 2:
        return set()
    return min(places.items(), key=lambda item: (len(item[1]), item[0][0] == "backward"))[1]


def _phase(pulse: HeartbeatSample, stack: Stack | None) -> str:
    if pulse.is_alive:
        return STOPPED if pulse.is_stopped else phase_of(pulse, stack)
    return LEFT if pulse.has_ended else ENDED


def _all_threads(stack: Stack, workers: Sequence[Stack]) -> str:
    of_workers = [f"loader worker {worker.pid}:\n{worker.text.rstrip()}" for worker in workers]
    return "\n".join([stack.text.rstrip(), *of_workers])
