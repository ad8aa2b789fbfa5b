"""A hang of a job: which ranks wait, in which collective, which rank is missing, and where that rank is instead.

In: the state of each rank, from `hang_judge`. Out: a `Hang`, and its description in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.units import rank_ranges

ENDED, LEFT, STOPPED = "ended", "left", "stopped"  # phases of ranks that cannot move
_GONE = {
    ENDED: "no longer has a process",
    LEFT: "has left the job: its script has ended",
    STOPPED: "is stopped by a signal (state T): `kill -CONT` resumes it",
}
_PHASES = {
    "data": "data loading",
    "compute": "the step",
}


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    phase: str
    is_late: bool  # the others wait for it
    sequence: int | None  # number of collectives that it has begun in the group
    call: str | None  # the collective's function, if the rank is in a collective
    frame: str | None  # the innermost line of the user's code
    innermost: str | None
    worker_frame: str | None  # frame of a DataLoader worker, if the rank waits for the worker
    silence_s: float
    is_busy: bool = False  # it computes, reads or writes, or its stack changes

    def where(self) -> str:
        """Describe where the rank is."""
        if self.phase in _GONE:
            return _GONE[self.phase]
        places = [place for place in (self.call, self.frame or self.innermost) if place]
        phase = _PHASES.get(self.phase, self.phase)
        busy = ", busy" if self.is_busy else ""
        worker = f", for its worker in {self.worker_frame}" if self.worker_frame else ""
        return "is in " + (f"{phase}{busy}: {', '.join(places)}" if places else phase + busy) + worker


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[RankState, ...]
    late: tuple[int, ...]  # empty: all ranks are in the same collective, which does not end
    group: str | None
    sequence: int | None  # of the collective that does not end
    operation: str | None  # its name, if torch's flight recorder has it
    silence_s: float
    limit_s: float
    step: int
    stacks: Mapping[int, str]  # stacks of all threads, by rank
    places: Mapping[int, tuple[str, ...]]  # the main thread's frames, innermost first, by rank

    def main_threads(self) -> list[str]:
        """Return the main threads' stacks, grouping ranks that are at the same place."""
        ranks_at: dict[tuple[str, ...], list[int]] = {}
        for rank, frames in self.places.items():
            ranks_at.setdefault(frames, []).append(rank)
        return [
            f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}:\n" + "\n".join(f"    {frame}" for frame in frames)
            for frames, ranks in ranks_at.items()
        ]

    def describe(self) -> str:
        """Describe in one sentence which rank is missing from which collective, and where that rank is instead."""
        late = [state for state in self.ranks if state.is_late]
        waiting = [state for state in self.ranks if not state.is_late]
        collective = self._collective()
        parts = []
        if waiting:
            parts.append(self._who_waits(waiting, collective))
        for state in late:
            arrived = "" if not collective or not waiting else f"has not arrived{self._at_the_same(state)}: it "
            parts.append(f"rank {state.rank} {arrived}{state.where()}")
        if not late:
            parts.append("no rank of this host is missing: the cause is the network, or a rank on another host")
        return f"hang at step {self.step}, after {self.silence_s:.0f} s without progress: " + "; ".join(parts)

    def _collective(self) -> str:
        if self.sequence is None:
            return ""
        operation = f" ({self.operation})" if self.operation else ""
        return f"collective #{self.sequence}{operation} of {_group(self.group)}"

    def _who_waits(self, waiting: Sequence[RankState], collective: str) -> str:
        places = [state.call or state.frame for state in waiting]
        distinct = list(dict.fromkeys(place for place in places if place))
        where = f" ({', '.join(distinct)})" if distinct else ""
        return f"{_names(waiting)} wait{'s' * (len(waiting) == 1)} in {collective or 'a collective'}{where}"

    def _at_the_same(self, state: RankState) -> str:
        is_at_same = state.call is not None and self.sequence is not None and state.sequence == self.sequence
        return " at the same collective" if is_at_same else ""


def _names(states: Sequence[RankState]) -> str:
    return ("rank " if len(states) == 1 else "ranks ") + ", ".join(str(state.rank) for state in states)


def _group(name: str | None) -> str:
    return "the default group" if name in ("0", "default_pg", None) else f"group {name}"
