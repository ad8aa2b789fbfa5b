"""Detect whether a job hangs, which rank is missing, and from which collective: heartbeats and stacks -> `Hang`.

Silence alone is not a hang. The ranks' stacks are requested three times in two seconds: a rank whose stack changes,
that computes, or that reads or writes is slow, not stuck, and so are the ranks that wait for it. The remaining ranks
hang. A rank that has begun fewer collectives than the others of its group is late: the others wait for it.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from flatout.keep.busy import ProcessUsage
from flatout.keep.flight import FlightRecord, collective
from flatout.keep.hang_timeout import HangTimeout
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.peer_board import PeerRank, PeerStatus
from flatout.keep.stacks import Frame, Stack
from flatout.units import rank_ranges

_NUM_LOOKS, _BETWEEN_LOOKS_S = 3, 1.0
_BUSY_CORES, _BUSY_BYTES = 0.1, 65536  # on an oversubscribed machine, each process gets a small share
_DISTRIBUTED = re.compile(r"torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives|rendezvous)\.py$")
_WAITING_FUNCTIONS = {"synchronize", "wait", "_engine_run_backward"}
_COPIES = re.compile(r"\.(item|cpu|tolist|numpy)\(|\.to\(\s*[\"']cpu|synchronize\(")
_COMPILING = re.compile(r"torch/(_dynamo|_inductor|_functorch)/|/triton/")
_ASKING = re.compile(r"/(pdb|bdb|code|cmd)\.py$")  # a debugger waits for its user
_EVALUATING = re.compile(r"(^|_)(eval\w*|valid\w*|test|sample|generate)($|_)", re.I)
_SAVING = re.compile(r"(^|_)(save\w*|checkpoint\w*|dump|upload\w*|push\w*|export\w*|publish)($|_)", re.I)
# Waiting for another machine or another program: a download, an upload, a command.
_ELSEWHERE = re.compile(
    r"/(ssl|socket|subprocess)\.py$|/http/client\.py$|/urllib3/|/requests/|/botocore/|/fsspec/|/s3fs/"
)


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
        found: dict[tuple[str, ...], list[int]] = {}
        for rank, frames in self.places.items():
            found.setdefault(frames, []).append(rank)
        return [
            f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}:\n" + "\n".join(f"    {frame}" for frame in frames)
            for frames, ranks in found.items()
        ]

    def describe(self) -> str:
        """Describe in one sentence which rank is missing from which collective, and where that rank is instead."""
        late = [state for state in self.ranks if state.is_late]
        waiting = [state for state in self.ranks if not state.is_late]
        operation = f" ({self.operation})" if self.operation else ""
        what = "" if self.sequence is None else f"collective #{self.sequence}{operation} of {_group(self.group)}"
        parts = []
        if waiting:
            where = ", ".join(dict.fromkeys(filter(None, (state.call or state.frame for state in waiting))))
            parts.append(
                f"{_names(waiting)} wait{'s' * (len(waiting) == 1)} in {what or 'a collective'}"
                + (f" ({where})" if where else "")
            )
        for state in late:
            arrived = "" if not what or not waiting else f"has not arrived{_mismatch(state, self.sequence)}: it "
            parts.append(f"rank {state.rank} {arrived}{_where(state)}")
        if not late:
            parts.append("no rank of this host is missing: the network, or a rank elsewhere")
        return f"hang at step {self.step}, after {self.silence_s:.0f} s without progress: " + "; ".join(parts)


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
        self._looks: list[tuple[float, dict[str, Stack], dict[str, ProcessUsage]]] = []
        self._next_s = 0.0

    def look(self, now: float, ranks: Sequence[HeartbeatSample], *, is_failing: bool = False) -> Hang | None:
        """Return a hang, once. Call this a few times per second. `is_failing`: a rank has reported an error."""
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
        stacks = dict(self._ask([pulse for pulse in present if pulse.is_alive]))
        self._looks.append((now, stacks, {pulse.name: self._work(pulse.pid) for pulse in present if pulse.is_alive}))
        self._waits = {pulse.name: _waits(pulse, stacks.get(pulse.name)) for pulse in present if pulse.is_alive}
        if len(self._looks) < _NUM_LOOKS:
            return None
        looks, self._looks = self._looks, []
        hang = self._judge(looks, ranks, silences, is_failing=is_failing)
        if hang is None:  # look again when the silence is half as long again
            self._next_s = now + max(longest / 2, _BETWEEN_LOOKS_S)
        return hang

    def told(self, ranks: Sequence[HeartbeatSample]) -> list[PeerRank]:
        """Return the status of this node's ranks for the other nodes."""
        return [
            PeerRank(
                rank=pulse.rank or 0,
                steps=pulse.num_steps,
                phase=pulse.phase,
                sequences=dict(pulse.sequences),
                waits=self._waits.get(pulse.name),
            )
            for pulse in ranks
            if not pulse.has_ended
        ]

    def _judge(
        self,
        looks: list[tuple[float, dict[str, Stack], dict[str, ProcessUsage]]],
        ranks: Sequence[HeartbeatSample],
        silences: Mapping[str, float],
        *,
        is_failing: bool,
    ) -> Hang | None:
        stacks = looks[-1][1]
        waiting = [pulse for pulse in ranks if pulse.is_alive and _waits(pulse, stacks.get(pulse.name))]
        if not waiting and any(
            not pulse.is_alive for pulse in ranks
        ):  # the remaining ranks are busy with their own work
            ranks = [pulse for pulse in ranks if pulse.is_alive]
        if not ranks:
            return None
        elsewhere = [rank for told in self._others() for rank in told.ranks]
        missing, group, sequence = late_by_count(ranks, [rank.sequences for rank in elsewhere])
        calls = {pulse.name: collective_of(stacks.get(pulse.name)) for pulse in ranks}
        if not missing:
            missing = {pulse.name for pulse in ranks if not _waits(pulse, stacks.get(pulse.name))}
        # All ranks of this node wait. The missing rank is on another node, which judges it: it may be in a long
        # evaluation. A timeout learned from steps does not apply to a rank on which no node reports.
        num_known = len(ranks) + len(elsewhere)
        is_elsewhere = not missing and max(pulse.world_size for pulse in ranks) > len(ranks)
        if is_elsewhere and (elsewhere and not all(rank.waits for rank in elsewhere)):
            return None
        is_unknown = is_elsewhere and max(pulse.world_size for pulse in ranks) > num_known
        if not missing:
            missing = _odd_one_out(ranks, calls, stacks)
        blamed = [pulse for pulse in ranks if pulse.name in missing] or list(ranks)
        for pulse in blamed:
            if not pulse.is_alive:
                continue
            is_waiting = pulse.name not in missing or _waits(pulse, stacks.get(pulse.name))
            if _gets_on(pulse.name, looks, is_waiting=is_waiting):
                return None
        limits = [
            self._patience.hangs_after_s(
                "network" if is_unknown else phase_of(pulse, stacks.get(pulse.name)),
                ranks,
                # The launcher will notice a failed rank and end the other ranks.
                is_witnessed=num_known > 1 and pulse.name in stacks and not is_failing,
            )
            for pulse in blamed
        ]
        if any(silences[pulse.name] < limit for pulse, limit in zip(blamed, limits, strict=True)):
            return None
        if any(_is_asking(stacks.get(pulse.name)) for pulse in ranks):
            return None
        of_workers = {
            pulse.name: self._workers(pulse) if pulse.name in missing and pulse.phase == "data" else ()
            for pulse in ranks
        }
        states = tuple(
            _state(
                pulse,
                stacks.get(pulse.name),
                calls[pulse.name],
                group,
                silences[pulse.name],
                missing,
                of_workers[pulse.name],
            )
            for pulse in ranks
        )
        recorded = collective(self._flight(ranks), group, sequence)
        return Hang(
            ranks=states,
            late=tuple(state.rank for state in states if state.is_late),
            group=group,
            sequence=sequence,
            operation=recorded.describe() if recorded is not None else None,
            silence_s=max(silences[pulse.name] for pulse in ranks),
            limit_s=max(limits),
            step=max(pulse.num_steps for pulse in ranks),
            stacks={
                pulse.rank or 0: "\n".join(
                    [
                        stacks[pulse.name].text.rstrip(),
                        *(f"loader worker {one.pid}:\n{one.text.rstrip()}" for one in of_workers[pulse.name]),
                    ]
                )
                for pulse in ranks
                if pulse.name in stacks
            },
            places={
                pulse.rank or 0: tuple(str(frame) for frame in stacks[pulse.name].frames)
                for pulse in ranks
                if pulse.name in stacks
            },
        )


def late_by_count(
    ranks: Sequence[HeartbeatSample], elsewhere: Sequence[Mapping[str, int]] = ()
) -> tuple[set[str], str | None, int | None]:
    """Return the ranks that began fewer collectives of a group than others, the group, and the pending number.

    `elsewhere`: the same counts for ranks on other nodes; these nodes report their own late ranks.
    """
    late: set[str] = set()
    found: tuple[str | None, int | None] = (None, None)
    for group in sorted({group for pulse in ranks for group in pulse.sequences}):
        counts = {pulse.name: pulse.sequences[group] for pulse in ranks if group in pulse.sequences}
        highest = max([*counts.values(), *(other[group] for other in elsewhere if group in other)])
        behind = {name for name, count in counts.items() if count < highest}
        if behind and not late:
            late, found = behind, (group, min(counts.values()) + 1)
        elif not late and highest and found[0] is None:
            found = (group, highest)
    dead = {pulse.name for pulse in ranks if not pulse.is_alive}
    return dead or late, *found


def collective_of(stack: Stack | None) -> str | None:
    """Return the function of torch.distributed that the main thread is in."""
    if stack is None:
        return None
    names = [frame.function for frame in stack.frames if frame.file.endswith("distributed_c10d.py")]
    outer = [name for name in names if not name.startswith("_") and name != "wrapper"]
    if outer:
        return outer[-1]
    if any(frame.function == "_engine_run_backward" for frame in stack.frames[:3]):
        return "backward"
    return names[-1] if names else None


def phase_of(pulse: HeartbeatSample, stack: Stack | None) -> str:
    """Return the phase that the hooks have marked; if they marked none, derive it from the stack."""
    if stack is not None and any(_COMPILING.search(frame.file) for frame in stack.frames):
        return "compilation"
    if pulse.phase != "compute":
        return pulse.phase
    own = [frame.function for frame in stack.frames if frame.is_users] if stack is not None else []
    if any(_EVALUATING.search(name) for name in own):
        return "evaluation"
    if any(_SAVING.search(name) for name in own):
        return "checkpoint"
    if stack is not None and any(_ELSEWHERE.search(frame.file) for frame in stack.frames[:6]):
        return "network"
    return "compute"


def _waits(pulse: HeartbeatSample, stack: Stack | None) -> bool:
    """Whether the rank waits for other ranks, as far as its stack shows."""
    if stack is None or not stack.frames or pulse.phase == "data":
        return False
    top = stack.frames[:4]
    if any(_DISTRIBUTED.search(frame.file) or frame.function in _WAITING_FUNCTIONS for frame in top):
        return True
    innermost = stack.frames[0]
    return pulse.has_gpu and _COPIES.search(linecache.getline(innermost.file, innermost.line)) is not None


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


def _gets_on(
    name: str, looks: list[tuple[float, dict[str, Stack], dict[str, ProcessUsage]]], *, is_waiting: bool
) -> bool:
    """Whether the rank did work between the polls. A wait for others, which can keep a core busy, does not count."""
    seen = [
        tuple((frame.file, frame.function) for frame in stacks[name].frames) for _, stacks, _ in looks if name in stacks
    ]
    if len(set(seen)) > 1:
        return True
    (first_s, _, first), (last_s, _, last) = looks[0], looks[-1]
    if name not in first or name not in last:
        return False
    if last[name].moved_since(first[name]) > _BUSY_BYTES:
        return True
    return not is_waiting and last[name].busy_cores(first[name], last_s - first_s) > _BUSY_CORES


def _is_asking(stack: Stack | None) -> bool:
    return stack is not None and any(_ASKING.search(frame.file) for frame in stack.frames)


def _state(
    pulse: HeartbeatSample,
    stack: Stack | None,
    call: str | None,
    group: str | None,
    silence_s: float,
    missing: set[str],
    workers: Sequence[Stack],
) -> RankState:
    own = stack.user_frame() if stack is not None else None
    # A worker whose innermost frame is in or near the user's code is probably at work, not waiting for work.
    of_workers = [
        frame
        for worker in sorted(workers, key=lambda worker: worker.depth())
        if (frame := worker.user_frame()) is not None
    ]
    return RankState(
        rank=pulse.rank or 0,
        phase=phase_of(pulse, stack) if pulse.is_alive else "left" if pulse.has_ended else "ended",
        is_late=pulse.name in missing,
        sequence=pulse.sequences.get(group) if group is not None else None,
        call=call,
        frame=str(own) if own is not None else None,
        innermost=str(stack.frames[0]) if stack is not None and stack.frames else None,
        worker_frame=str(of_workers[0]) if of_workers else None,
        silence_s=silence_s,
    )


_PHASES = {
    "data": "data loading",
    "compute": "the step",
}
_GONE = {"ended": "has no process any more", "left": "has left: its script has ended"}


def _where(state: RankState) -> str:
    if state.phase in _GONE:
        return _GONE[state.phase]
    places = [place for place in (state.call, state.frame or state.innermost) if place]
    phase = _PHASES.get(state.phase, state.phase)
    worker = f", for its worker in {state.worker_frame}" if state.worker_frame else ""
    return "is in " + (f"{phase}: {', '.join(places)}" if places else phase) + worker


def _mismatch(state: RankState, sequence: int | None) -> str:
    if state.call is not None and sequence is not None and state.sequence == sequence:
        return " at the same one"
    return ""


def _names(states: Sequence[RankState]) -> str:
    return ("rank " if len(states) == 1 else "ranks ") + ", ".join(str(state.rank) for state in states)


def _group(name: str | None) -> str:
    return "the default group" if name in ("0", "default_pg", None) else f"group {name}"
