"""The garbage collector: no replay, because a trace does not name collections and its steps may have none."""

from __future__ import annotations

from flatout.predict.situation import Scenarios, Situation
from flatout.records.change import Change


def collections(situation: Situation, change: Change) -> Scenarios | str:
    del situation, change
    return "a trace does not name garbage collections, so only the finding's cost bounds the gain"


MODELS = {"gc-freeze": collections, "gc-off": collections, "gc-together": collections}
