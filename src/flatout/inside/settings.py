"""Read the recorder's settings from the environment. In: variables of the protocol. Out: `RecorderSettings`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from flatout.inside.protocol import DEFAULT_NUM_STEPS, File, Variable

# The variable in which torchrun counts how often it has restarted the ranks.
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """What `records.stop_rule.StopRule` says, as the job reads it."""

    min_steps: int
    max_steps: int
    min_s: float = 0.0
    max_s: float | None = None
    relative_error: float = 0.0
    error_per_root_s: float = 0.0
    period: int | None = None
    abandon_step_s: float | None = None
    accept_step_s: float | None = None

    @property
    def is_fixed(self) -> bool:
        return self.min_steps == self.max_steps


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
    stop_rule: StopRule | None = None
    has_blocks: bool = False
    times_loader_stages: bool = False
    attempt: int = 0

    @property
    def is_trial(self) -> bool:
        """Whether this is a trial: a tuning run compares its steps.

        If so, work that can wait until the end is not done between steps.
        """
        return self.is_light and self.is_stopped_by_steps

    @property
    def is_stopped_by_steps(self) -> bool:
        """Whether the steps themselves decide when the job stops."""
        return self.stop_after is not None or self.stop_rule is not None or self.has_blocks

    @property
    def watches_loaders(self) -> bool:
        """Whether the first batches of loaders are watched, which takes time in the steps that they are made for."""
        return self.has_facts and not self.is_trial

    @property
    def folder(self) -> Path:
        """Return the folder where the ranks of this attempt write; for the first attempt, the recording itself."""
        if not self.attempt:
            return self.recording
        return self.recording / File.ATTEMPTS / str(self.attempt)

    @property
    def state(self) -> Path:
        """Return the folder where the attempt's processes communicate while the job runs; it is not needed
        afterwards.
        """
        state = self.recording / File.STATE
        if not self.attempt:
            return state
        return state / f"attempt-{self.attempt}"


def read_settings(environment: Mapping[str, str] = os.environ) -> RecorderSettings | None:
    """Return the settings; None if nothing is recorded. A value that is not a number counts as absent."""
    recording = environment.get(Variable.RECORDING)
    if not recording:
        return None
    num_steps = _whole_number(environment.get(Variable.STEPS))
    is_light = environment.get(Variable.LIGHT) == "1"
    return RecorderSettings(
        recording=Path(recording),
        num_steps=DEFAULT_NUM_STEPS if num_steps is None else max(num_steps, 1),
        warmup=_whole_number(environment.get(Variable.WARMUP)),
        is_light=is_light,
        has_facts=not is_light or environment.get(Variable.FACTS) == "1",
        has_gradients=environment.get(Variable.GRADIENTS) == "1",
        stop_after=_whole_number(environment.get(Variable.STOP_AFTER)),
        stop_after_s=_whole_number(environment.get(Variable.STOP_AFTER_S)),
        stop_rule=_stop_rule(environment.get(Variable.STOP_RULE)),
        has_blocks=bool(environment.get(Variable.BLOCKS)),
        times_loader_stages=environment.get(Variable.LOADER_STAGES) == "1",
        attempt=_whole_number(environment.get(RESTARTS)) or 0,
    )


def _stop_rule(text: str | None) -> StopRule | None:
    """Return the rule; None if there is none, or if it is not valid. It excludes the fields of newer versions."""
    names = [field.name for field in fields(StopRule)]
    try:
        content = json.loads(text or "null")
        values = {name: content[name] for name in names if content.get(name) is not None}
        if not all(isinstance(value, (int, float)) for value in values.values()):
            return None
        return StopRule(**values)
    except (ValueError, TypeError, AttributeError):
        return None


def _whole_number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return int(text)
