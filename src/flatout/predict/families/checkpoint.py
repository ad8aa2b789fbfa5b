"""Checkpoints in the background: the copies to the host stay in the step, but the writing does not."""

from __future__ import annotations

from flatout.predict.families.host_time import host_time
from flatout.predict.situation import Scenarios, Situation
from flatout.records.change import Change
from flatout.records.track import Spent


def background(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return host_time(
        situation,
        (Spent.CHECKPOINT,),
        likely=0.05,
        worst=0.3,
        best=0.0,
        how="all of a checkpoint except its copies to the host runs in the background",
        assumption="the thread that writes does not slow the training, and finishes before the next checkpoint",
    )


MODELS = {"background-checkpoint": background}
