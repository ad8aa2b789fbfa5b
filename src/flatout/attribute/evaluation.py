"""Recognise steps of a trace that contain an evaluation: layers run forward far more often than they run backward.

In: an event table and its step marks. Out: the numbers of these steps. A step with more forward layers and more
backward nodes does more training, and a model whose layers leave no operators (compiled, or captured in a graph) shows
nothing.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from flatout.attribute import names
from flatout.attribute.intervals import Flags
from flatout.attribute.steps import HostSteps
from flatout.records.events import EventTable, Kind

MIN_RATIO = 2.0  # forward layers of the step, over those of the step with the fewest
# Operators that modules call going forward; none of them runs inside a backward pass.
_FORWARD_LAYER = re.compile(
    r"^aten::(?:linear|conv\dd|conv_transpose\dd|embedding|layer_norm|batch_norm|group_norm|lstm|gru|rnn_tanh|rnn_relu"
    r"|scaled_dot_product_attention)$"
)


def evaluated_steps(table: EventTable, marks: HostSteps) -> frozenset[int]:
    """Return the numbers of the steps that contain an evaluation."""
    if len(marks.number) < 2:
        return frozenset()
    is_operator = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION)
    forward = is_operator & table.name_matches(names.matching(table.names, _FORWARD_LAYER))
    is_backward = np.fromiter((name.startswith(names.BACKWARD_PREFIX) for name in table.names), np.bool_)
    backward = is_operator & table.name_matches(is_backward)
    num_forward, num_backward = _per_step(table, marks, forward), _per_step(table, marks, backward)
    usual_forward, usual_backward = int(num_forward.min()), int(num_backward.min())
    if not usual_forward or not usual_backward:
        return frozenset()
    has_more_forward = num_forward >= MIN_RATIO * usual_forward
    trains_as_usual = num_backward < MIN_RATIO * usual_backward
    rows = np.flatnonzero(has_more_forward & trains_as_usual)
    return frozenset(marks.number[row] for row in rows.tolist())


def _per_step(table: EventTable, marks: HostSteps, rows: Flags) -> NDArray[np.int64]:
    """Return how many of the events begin in each step."""
    starts = table.start_ns[rows]
    num_before_end = np.searchsorted(starts, marks.end_ns, side="left")
    num_before_start = np.searchsorted(starts, marks.start_ns, side="left")
    return np.asarray(num_before_end - num_before_start)
