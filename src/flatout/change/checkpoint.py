"""Checkpoints: written in the background instead of in the training loop."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob

FAMILY = "checkpoint"

BACKGROUND = Knob(
    name="background-checkpoint",
    family=FAMILY,
    summary="copy the state to the host and write it in the background",
    safety="exact",
    answers={"checkpoint-stall": 0.95},
    gates=("loss", "memory"),
    doc=(
        "`torch.save` and `torch.distributed.checkpoint.save` return after the copy; a thread writes the same bytes,"
        " and the process ends only when they are on disk. It takes host memory for one copy of the state. A script"
        " that reads its checkpoint back at once waits for the write."
    ),
    source="torch.distributed.checkpoint.async_save documentation",
)
KNOBS = (BACKGROUND,)


def changes(facts: JobFacts) -> Iterator[Change]:
    del facts  # nothing depends on them
    yield setting(BACKGROUND, patch="background_checkpoint")
