"""Device memory: the allocator's calls, and the waits for the GPU that they cause."""

from __future__ import annotations

from flatout.predict.families.host_time import host_time
from flatout.predict.situation import Scenarios, Situation
from flatout.records.change import Change
from flatout.records.track import Spent, TrackNode


def _less_allocation(situation: Situation, *, likely: float, worst: float, best: float, how: str) -> Scenarios | str:
    return host_time(
        situation,
        (Spent.ALLOCATOR,),
        likely=likely,
        worst=worst,
        best=best,
        how=how,
        assumption="the traced steps free and allocate like all other steps",
        without=(TrackNode.FREE,),
    )


def keep_cache(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _less_allocation(situation, likely=0.02, worst=0.3, best=0.0, how="memory is no longer freed and allocated")


def expandable(situation: Situation, change: Change) -> Scenarios | str:
    del change
    how = "fewer calls of the device's allocator"
    return _less_allocation(situation, likely=0.5, worst=1.2, best=0.0, how=how)


def collection(situation: Situation, change: Change) -> Scenarios | str:
    del change
    how = "fewer calls of the device's allocator"
    return _less_allocation(situation, likely=0.7, worst=1.2, best=0.2, how=how)


def checkpointing(situation: Situation, change: Change) -> str:
    del situation, change
    return "it saves memory: a step takes longer by up to one more forward pass"


MODELS = {
    "keep-cache": keep_cache,
    "allocator-expandable": expandable,
    "allocator-collection": collection,
    "activation-checkpointing": checkpointing,
}
