"""Batches by length: a trace has the shapes of a few batches, not the lengths of their samples."""

from __future__ import annotations

from flatout.predict.situation import Situation
from flatout.records.change import Change


def by_length(situation: Situation, change: Change) -> str:
    del situation, change
    return "a trace does not contain the lengths of samples before they are padded"


def by_size(situation: Situation, change: Change) -> str:
    del situation, change
    return "how a call's time grows with its batch depends on the operators: a trial shows it"


MODELS = {"batches-by-length": by_length, "batches-by-tokens": by_length, "loader-batch": by_size}
