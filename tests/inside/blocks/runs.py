"""Runs `job.py` with a schedule of blocks, and reads what the job saw in each step and what was recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.inside.patches import runs

JOB = Path(__file__).with_name("job.py")
MOST_STEPS = 4000
Settings = Sequence[tuple[str, dict[str, Any]]]


class Seen(NamedTuple):
    """What the job printed after a step."""

    values: dict[str, str]

    def __getitem__(self, name: str) -> int:  # type: ignore[override]
        return int(self.values[name])

    @property
    def samples(self) -> list[int]:
        return [int(index) for index in self.values["samples"].split(",")]


class BlockEvents(NamedTuple):
    done: runs.Done
    steps: list[Seen]
    events: list[dict[str, Any]]

    def seen(self, name: str, arm: str) -> set[int]:
        """What the job saw in the measured steps of an arm."""
        return {
            self.steps[step][name]
            for event in self.events
            if event["arm"] == arm
            for step in range(event["first_measured"], event["end"])
        }

    def problems(self, arm: str) -> set[str | None]:
        return {event["problem"] for event in self.events if event["arm"] == arm}


def run_blocks(
    recording: Path,
    settings: Settings,
    *options: str,
    ranks: int = 1,
    order: Sequence[int] = (0, 1, 1, 0),
    num_steps: int = 3,
    carry_over: int = 2,
    warmup: int = 3,
    drops_slow_arms: bool = False,
    **more: str,
) -> BlockEvents:
    """Run the job in blocks of the baseline and of one arm, `x`, whose steps are numbered as the job prints them."""
    arm = {
        "name": "x",
        "settings": [{"name": name, "parameters": given} for name, given in settings],
        "carry_over": carry_over,
    }
    schedule = {
        "arms": [arm],
        "order": list(order),
        "unit": 4,
        "min_steps": num_steps,
        "min_block_s": 0.0,
        "max_s": 60.0,
        "drops_slow_arms": drops_slow_arms,  # in blocks of a few milliseconds, an arm is slow by chance
    }
    done = runs.run(
        recording,
        MOST_STEPS,
        *options,
        job=JOB,
        ranks=ranks,
        is_recorded=True,
        FLATOUT_LIGHT="1",
        FLATOUT_WARMUP=str(warmup),
        FLATOUT_BLOCKS=json.dumps(schedule),
        **more,
    )
    steps = [line.split(" ") for line in done.output if line.startswith("step ")]
    seen = [Seen(dict(word.split("=", 1) for word in words[2:])) for words in steps]
    assert [int(words[1]) for words in steps] == list(range(len(steps)))
    lines = [json.loads(line) for line in (recording / "rank0.steps.jsonl").read_text().splitlines()]
    events = [line for line in lines if isinstance(line, dict) and line.get("event") == "block"]
    return BlockEvents(done, seen, events)
