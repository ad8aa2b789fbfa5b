"""Models of how each change edits the replay, one file per family of the catalogue. `MODELS` maps knob name -> model.

A model takes the situation and the change, and returns `Scenarios`, or text with the reason why there are none. Numbers
that cannot be determined from a trace are priors; each is stated with its source, and `calibrate` corrects them from
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.predict.families import (
    batches,
    checkpoint,
    dataloader,
    ddp,
    fsdp2,
    garbage_collection,
    inference,
    kernels,
    memory,
    nccl,
    optimizer,
    process,
)
from flatout.predict.situation import Scenarios, Situation
from flatout.records.change import Change

Model = Callable[[Situation, Change], Scenarios | str]

MODELS: Mapping[str, Model] = {
    **dataloader.MODELS,
    **batches.MODELS,
    **ddp.MODELS,
    **fsdp2.MODELS,
    **nccl.MODELS,
    **optimizer.MODELS,
    **checkpoint.MODELS,
    **memory.MODELS,
    **process.MODELS,
    **garbage_collection.MODELS,
    **inference.MODELS,
    **kernels.MODELS,
}
