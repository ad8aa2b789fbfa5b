"""Name the runs of a tuning in its journal: runs of the same job have equal keys.

In: the changes of a run, and how long it is. Out: a text, by which a resumed tuning finds what it has already run.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.stop_rule import StopRule


def trial_key(changes: ChangeSet, length: StopRule | int) -> str:
    """Return a key that is equal for trials that run the same job, regardless of the predictions for their changes.

    Rules that leave the number of steps open are alike: they follow the times of earlier trials, and so differ between
    a tuning and its resumption.
    """
    settings = msgspec.structs.replace(changes, changes=())
    num_steps: object = length
    if isinstance(length, StopRule):
        num_steps = length.max_steps if length.is_fixed else "open"
    return f"{changes.name} {json.dumps(msgspec.to_builtins(settings), sort_keys=True)} {num_steps}"


def blocks_key(applied: ChangeSet, schedule: str) -> str:
    """Return a key that is equal for jobs with the same blocks, whatever time they may take."""
    blocks = json.loads(schedule)
    blocks.pop("max_s", None)  # it follows the times of earlier trials
    digest = hashlib.sha256(json.dumps(blocks, sort_keys=True).encode()).hexdigest()
    return f"{trial_key(applied, 0)} blocks {digest}"
