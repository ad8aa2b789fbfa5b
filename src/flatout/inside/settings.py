"""What the environment asks the recorder to do. In: FLATOUT_* variables. Out: `RecorderSettings`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.inside.protocol import DEFAULT_NUM_STEPS, File, Variable

# torchrun's: how often it has started the ranks again
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
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
        return self.recording / File.ATTEMPTS / str(self.attempt) if self.attempt else self.recording

    @property
    def state(self) -> Path:
        """What processes tell each other while the job runs; of no use afterwards."""
        state = self.recording / File.STATE
        return state / f"attempt-{self.attempt}" if self.attempt else state


def read_settings(environment: Mapping[str, str] = os.environ) -> RecorderSettings | None:
    """None where nothing should be recorded. A value that is no number counts as absent."""
    recording = environment.get(Variable.RECORDING)
    if not recording:
        return None
    num_steps = _whole(environment.get(Variable.STEPS))
    return RecorderSettings(
        recording=Path(recording),
        num_steps=DEFAULT_NUM_STEPS if num_steps is None else max(num_steps, 1),
        warmup=_whole(environment.get(Variable.WARMUP)),
        is_light=environment.get(Variable.LIGHT) == "1",
        has_facts=environment.get(Variable.LIGHT) != "1" or environment.get(Variable.FACTS) == "1",
        has_gradients=environment.get(Variable.GRADIENTS) == "1",
        stop_after=_whole(environment.get(Variable.STOP_AFTER)),
        stop_after_s=_whole(environment.get(Variable.STOP_AFTER_S)),
        attempt=_whole(environment.get(RESTARTS)) or 0,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
