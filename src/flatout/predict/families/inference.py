"""Changes for scripts that only infer: a trace of training shows none of their effects, so only trials can show it."""

from __future__ import annotations

from flatout.predict.situation import Scenarios, Situation
from flatout.records.change import Change


def unpredicted(situation: Situation, change: Change) -> Scenarios | str:
    del situation
    return f"what {change.knob.name} saves depends on the operators and the cores: a trial shows it"


MODELS = dict.fromkeys(
    (
        "session-provider",
        "onnx-export",
        "session-threads",
        "session-spinning",
        "session-graph",
        "torch-threads",
        "one-thread",
        "wait-passively",
        "autocast-cpu",
        "channels-last-cpu",
        "compile-cpu",
        "fused-attention-cpu",
        "kv-cache",
        "static-kv-cache",
    ),
    unpredicted,
)
