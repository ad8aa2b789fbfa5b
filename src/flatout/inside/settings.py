"""What the environment asks the recorder to do. In: FLATOUT_* variables. Out: `Settings`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The documented variables; `flatout profile` sets them, a user may.
RECORDING = "FLATOUT_RECORDING"  # the folder to record to; without it, nothing is installed
STEPS = "FLATOUT_STEPS"  # how many steps to trace, 3
WARMUP = "FLATOUT_WARMUP"  # trace after this many steps; empty: when step times have settled
LIGHT = "FLATOUT_LIGHT"  # 1: no trace
FACTS = "FLATOUT_FACTS"  # 1: write down what the job is, also without a trace
GRADIENTS = "FLATOUT_GRADIENTS"  # 1: measure the norms of the first steps' gradients
STOP_AFTER = "FLATOUT_STOP_AFTER"  # end the job after so many settled steps, at a step boundary of all ranks
STOP_AFTER_S = "FLATOUT_STOP_AFTER_S"  # the same, after so many seconds
# Those that need no recording: FLATOUT_PATCHES (patches/apply.py), FLATOUT_DIVERT (divert.py), FLATOUT_SAFE_SAVE
# (safe_save.py) and FLATOUT_HEARTBEAT (heartbeat.py).
# torchrun's: how often it has started the ranks again
RESTARTS = "TORCHELASTIC_RESTART_COUNT"

DEFAULT_NUM_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    recording: Path
    num_steps: int = DEFAULT_NUM_STEPS
    warmup: int | None = None
    is_light: bool = False
    has_facts: bool = True
    has_gradients: bool = False
    stop_after: int | None = None
    stop_after_s: int | None = None
    attempt: int = 0

    @property
    def is_trial(self) -> bool:
        """Of a tuning, whose steps are compared: nothing is done in or between them that could be done at the end."""
        return self.is_light and self.stop_after is not None

    @property
    def folder(self) -> Path:
        """Where the ranks of this attempt write: the first one to the recording itself."""
        return self.recording / "attempts" / str(self.attempt) if self.attempt else self.recording

    @property
    def state(self) -> Path:
        """What processes tell each other while the job runs; of no use afterwards."""
        return self.recording / ".state" / f"attempt-{self.attempt}" if self.attempt else self.recording / ".state"


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings | None:
    """None where nothing should be recorded. A value that is no number counts as absent."""
    recording = environment.get(RECORDING)
    if not recording:
        return None
    num_steps = _whole(environment.get(STEPS))
    return Settings(
        recording=Path(recording),
        num_steps=DEFAULT_NUM_STEPS if num_steps is None else max(num_steps, 1),
        warmup=_whole(environment.get(WARMUP)),
        is_light=environment.get(LIGHT) == "1",
        has_facts=environment.get(LIGHT) != "1" or environment.get(FACTS) == "1",
        has_gradients=environment.get(GRADIENTS) == "1",
        stop_after=_whole(environment.get(STOP_AFTER)),
        stop_after_s=_whole(environment.get(STOP_AFTER_S)),
        attempt=_whole(environment.get(RESTARTS)) or 0,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
