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

DEFAULT_NUM_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    recording: Path
    num_steps: int = DEFAULT_NUM_STEPS
    warmup: int | None = None
    is_light: bool = False

    @property
    def state(self) -> Path:
        """What processes tell each other while the job runs; of no use afterwards."""
        return self.recording / ".state"


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
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
