"""Drop arms that are clearly slower, so that they do not take the time of the others.

In: the step times of the blocks on rank 0. Out: the same dropped arms on all ranks before each unit. Rank 0 writes a
line before each unit; the other ranks wait for it between two steps. No step is measured meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import fmean

from flatout.inside.identity import Identity

# A step takes this many times as long as the baseline's: in the only unit so far, or in each of two or more.
MAX_AFTER_ONE_UNIT, MAX_AFTER_TWO_UNITS = 2.0, 1.25
_POLL_S, _LONGEST_WAIT_S = 0.001, 60.0


class DroppedArms:
    def __init__(self, state: Path, identity: Identity, generation: int) -> None:
        self._path = state / f"blocks-{generation}-dropped"
        self._is_alone = identity.world_size == 1
        self._decides = identity.rank == 0
        self._unit: dict[int, list[float]] = {}  # step times of the current unit, by arm
        self._slowdowns: dict[int, list[float]] = {}  # of each complete unit, by arm
        if not self._is_alone:
            # Every rank creates the file empty before reading it, so that no file server caches its absence.
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))

    def add(self, arm: int, step_s: float) -> None:
        """Take the mean step of a block."""
        self._unit.setdefault(arm, []).append(step_s)

    def before_unit(self, unit: int) -> set[int]:
        """Return the arms that get no more blocks, the same on all ranks."""
        times, self._unit = self._unit, {}
        baseline_s = fmean(times[0]) if times.get(0) else 0.0
        for arm, steps_s in times.items():
            if arm and baseline_s > 0:
                self._slowdowns.setdefault(arm, []).append(fmean(steps_s) / baseline_s)
        if not self._decides:
            return self._read(unit)
        dropped = {arm for arm, slowdowns in self._slowdowns.items() if is_clearly_slower(slowdowns)}
        if not self._is_alone:
            with self._path.open("a") as file:
                file.write(json.dumps({"unit": unit, "dropped": sorted(dropped)}) + "\n")
        return dropped

    def _read(self, unit: int) -> set[int]:
        deadline = time.monotonic() + _LONGEST_WAIT_S
        while time.monotonic() < deadline:
            for line in self._path.read_text().splitlines(keepends=True):
                if line.endswith("\n") and (announcement := json.loads(line))["unit"] == unit:
                    return set(announcement["dropped"])
            time.sleep(_POLL_S)
        raise TimeoutError(f"rank 0 has not said within {_LONGEST_WAIT_S:.0f} s how the blocks continue")


def is_clearly_slower(slowdowns: list[float]) -> bool:
    if len(slowdowns) == 1:
        return slowdowns[0] >= MAX_AFTER_ONE_UNIT
    return min(slowdowns) >= MAX_AFTER_TWO_UNITS
