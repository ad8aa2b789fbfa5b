"""Assign the time of each device to exactly one class: heartbeats -> nanoseconds, for the ledger.

A device's time is reported up to the end of its rank's last step; later time is reported once its class is known. The
reported classes therefore sum to the devices' time up to that step, to the nanosecond. Parts of a step that
`StepBreakdown` does not know are included in `productive` and `recomputed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.step_breakdown import PARTED, StepBreakdown

CLASSES = (
    "productive",  # steps made for the first time
    "recomputed",  # steps that an earlier attempt had already made and lost
    "data",
    *PARTED,  # parts of steps, if known
    "checkpoint",
    "evaluation",
    "start_up",  # until the end of the first step of the first attempt
    "restart",  # from a failure until the end of the first step after it
    "hang",
    "idle_held",  # devices that were allocated to the job but have no rank
    "suspended",  # the processes were stopped, by a signal or with the host
    "other",  # after the last step
    "unknown",
)
AttemptOutcome = Literal["done", "failed", "hang"]
Seconds = dict[str, int]  # class -> ns, summed over all devices

_OF_PHASES = {"data": "data", "checkpoint": "checkpoint", "evaluation": "evaluation"}


class Account:
    """The account of one run. Times are ns of CLOCK_MONOTONIC. `num_devices` is None until ranks are seen."""

    def __init__(self, start_ns: int, num_devices: int | None = None, within: StepBreakdown | None = None) -> None:
        self.start_ns = start_ns
        self._within = within if within is not None else StepBreakdown()
        self._steps_ns = 0
        self._known_ns: dict[str, dict[str, int]] = {}
        self._attempt_ns = start_ns
        self._cursors: list[int] = [start_ns] * (num_devices or 0)
        self._is_first = True
        self._farthest = self._reached = 0
        self._names: dict[int | None, str] = {}  # name of each rank's latest process
        self._seen: dict[str, tuple[int, dict[str, int]]] = {}  # by process: its steps and phases reported so far
        self._suspended: dict[int, dict[str, int]] = {}  # by device and by the phase that was suspended, not reported

    @property
    def num_devices(self) -> int | None:
        return len(self._cursors) or None

    def attempt_begins(self, now_ns: int, *, is_first: bool, farthest: int) -> None:
        """Begin another attempt; `farthest` is the highest step that earlier attempts reached."""
        self._attempt_ns = now_ns
        self._is_first = is_first
        self._farthest = self._reached = farthest
        self._names.clear()
        self._seen.clear()
        self._within.begins()

    def suspends(self, place: int, phase: str, ns: int) -> None:
        """Note that the rank of a device was suspended in this phase; the time is reported with its next part."""
        of_place = self._suspended.setdefault(place, {})
        of_place[phase] = of_place.get(phase, 0) + ns

    def look(
        self, now_ns: int, ranks: Sequence[HeartbeatSample], base: Callable[[HeartbeatSample], int | None]
    ) -> Seconds:
        """Return the time whose class became known since the last call. `base`: a rank's steps before its process."""
        found: Seconds = {}
        self._within.look(now_ns, ranks)
        self._grow(ranks)
        self._note_restarts(ranks)
        for place, pulse in enumerate(ranks):
            self._steps(place, pulse, base(pulse), now_ns, found)
        if ranks and all(pulse.num_steps for pulse in ranks):  # before that, more ranks may be about to start
            for place in range(len(ranks), len(self._cursors)):
                self._advance(place, now_ns, "idle_held", found)
        return found

    def attempt_ends(
        self,
        now_ns: int,
        ranks: Sequence[HeartbeatSample],
        base: Callable[[HeartbeatSample], int | None],
        outcome: AttemptOutcome,
    ) -> Seconds:
        found = self.look(now_ns, ranks, base)
        if not self._cursors:  # no rank was ever seen, and the number of devices was not given
            return found
        rest = {"done": "other", "failed": "restart", "hang": "hang"}[outcome]
        for place, pulse in enumerate(ranks):
            if pulse.num_steps:
                self._tail(place, pulse, now_ns, found)
        for place in range(len(self._cursors)):
            is_new = place >= len(ranks) or not ranks[place].num_steps
            silent = "unknown" if not ranks else "start_up" if self._is_first else "restart"
            self._advance(place, now_ns, silent if is_new and outcome != "hang" else rest, found)
        return found

    def take_known(self) -> tuple[int, dict[str, dict[str, int]], dict[str, str]]:
        """Return the time of steps since the last call, in ns, the part that is known, and why the rest is unknown.

        The known part is in ns by class of `within` and by source; the reasons are by class.
        """
        taken = self._steps_ns, self._known_ns, self._within.reasons()
        self._steps_ns, self._known_ns = 0, {}
        return taken

    def stops(self, now_ns: int) -> Seconds:
        """Close the account of a run that ends between two attempts."""
        found: Seconds = {}
        name = "restart" if self._cursors else "unknown"
        self.assume(1)
        for place in range(len(self._cursors)):
            self._advance(place, now_ns, name, found)
        return found

    def assume(self, num_devices: int) -> None:
        """Assume this number of devices, because the run ends and no rank was seen."""
        if not self._cursors:
            self._cursors = [self.start_ns] * num_devices

    def _grow(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Add devices. The first ranks seen count from the start of the run, and later ranks from their own start."""
        begun_ns = self._attempt_ns if self._cursors and not self._is_first else self.start_ns
        self._cursors += [begun_ns] * (len(ranks) - len(self._cursors))

    def _note_restarts(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Detect ranks that the launcher itself restarted within an attempt."""
        for pulse in ranks:
            if self._names.get(pulse.rank, pulse.name) != pulse.name:
                self._is_first = False
                self._farthest = max(self._farthest, self._reached)
            self._names[pulse.rank] = pulse.name

    def _advance(self, place: int, to_ns: int, name: str, found: Seconds) -> None:
        left = to_ns - self._cursors[place]
        if left <= 0:
            return
        left -= self._take_suspended(place, left, {}, found)
        if left:
            found[name] = found.get(name, 0) + left
        self._cursors[place] = to_ns

    def _take_suspended(self, place: int, most_ns: int, phases: dict[str, int], found: Seconds) -> int:
        """Report the suspended time of a device, at most `most_ns`; the phases in which it was suspended lose it."""
        taken = 0
        for phase, ns in self._suspended.pop(place, {}).items():
            part = min(ns, most_ns - taken)
            taken += part
            if phase in phases:
                phases[phase] = max(phases[phase] - part, 0)
        if taken:
            found["suspended"] = found.get("suspended", 0) + taken
        return taken

    def _steps(self, place: int, pulse: HeartbeatSample, base: int | None, now_ns: int, found: Seconds) -> None:
        """Assign the time up to the end of the rank's last step."""
        if not pulse.num_steps or pulse.first_step_end_s is None or pulse.last_step_end_s is None:
            return
        if base is not None:
            self._reached = max(self._reached, base + pulse.num_steps)
        num, phases = self._seen.get(pulse.name, (0, {}))
        if num == 0:
            num, phases = 1, _whole_ns(pulse.spent_at_first_s)
            self._part(place, min(_ns(pulse.first_step_end_s), now_ns), phases, self._begins(), found)
        if pulse.num_steps > num:
            spent = _whole_ns(pulse.spent_at_last_s)
            since = {name: spent[name] - phases[name] for name in spent}
            end_ns = min(_ns(pulse.last_step_end_s), now_ns)
            worth = self._worth(base, num, pulse.num_steps)
            self._part(place, end_ns, since, worth, found, of_steps=(pulse, pulse.num_steps - num))
            num, phases = pulse.num_steps, spent
        self._seen[pulse.name] = num, phases

    def _tail(self, place: int, pulse: HeartbeatSample, now_ns: int, found: Seconds) -> None:
        """Assign the time after the last step. Checkpoints and evaluations keep their class."""
        _, phases = self._seen[pulse.name]
        spent = _whole_ns(pulse.spent_s)
        known = {name: max(spent[name] - phases[name], 0) for name in spent if name in _OF_PHASES}
        total = min(sum(known.values()), max(now_ns - self._cursors[place], 0))
        self._part(place, self._cursors[place] + total, known, {"other": 1}, found)

    def _begins(self) -> dict[str, int]:
        return {"start_up" if self._is_first else "restart": 1}

    def _worth(self, base: int | None, num: int, to: int) -> dict[str, int]:
        """Return, by class, how many steps after number `num` are new and how many an earlier attempt had made."""
        if base is None:
            return {"unknown": to - num}
        again = min(max(self._farthest - base, num), to) - num
        return {"recomputed": again, "productive": to - num - again}

    def _part(
        self,
        place: int,
        end_ns: int,
        phases: dict[str, int],
        rest: dict[str, int],
        found: Seconds,
        of_steps: tuple[HeartbeatSample, int] | None = None,
    ) -> None:
        """Assign the device's time up to `end_ns` to phases and known parts of steps.

        Split the remainder as in `rest`.
        """
        begin_ns = self._cursors[place]
        left = end_ns - begin_ns
        if left <= 0:
            return
        self._cursors[place] = end_ns
        phases = dict(phases)
        left -= self._take_suspended(place, left, phases, found)
        for phase, name in _OF_PHASES.items():
            part = min(max(phases.get(phase, 0), 0), left)
            if part:
                found[name] = found.get(name, 0) + part
                left -= part
        if of_steps is not None:
            away_ns = phases.get("checkpoint", 0) + phases.get("evaluation", 0)
            self._steps_ns += left
            whole = left
            for one in self._within.parts(*of_steps, begin_ns, end_ns, away_ns=away_ns, left_ns=left):
                known = self._known_ns.setdefault(one.name, {})
                known[one.basis] = known.get(one.basis, 0) + whole
                if one.ns:
                    found[one.name] = found.get(one.name, 0) + one.ns
                    left -= one.ns
        weight = sum(rest.values())
        for name, count in rest.items():
            part = left if count == weight else left * count // weight
            if part:
                found[name] = found.get(name, 0) + part
            left, weight = left - part, weight - count


def _ns(value_s: float) -> int:
    return round(value_s * 1e9)


def _whole_ns(spent_s: object) -> dict[str, int]:
    assert isinstance(spent_s, dict)
    return {name: _ns(value) for name, value in spent_s.items()}
