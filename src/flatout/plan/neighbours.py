"""Find layouts that differ from the best in one parameter, why each is slower, and which property would help most."""

from __future__ import annotations

import numpy as np

from flatout.plan.constants import from_logs
from flatout.plan.inputs import FIELDS, CostModelInputs
from flatout.plan.layouts import LAYOUT_PARAMETERS, Columns
from flatout.plan.search_context import Array, Rows, SearchContext
from flatout.plan.step_time import step_time
from flatout.records.plan import PlannedLayout
from flatout.units import num_bytes, percent, seconds

# Sequence parallelism requires TP, and interleaving requires a pipeline, so these may change together.
_FOLLOWERS = {"tp": "sp", "pp": "vpp"}
AS_FAST = 0.005  # smaller differences in step time do not count


def neighbours(columns: Columns, best: int, times: Array) -> Rows:
    """Return the rows that differ from the best in one parameter; degrees change to the next value, and DP follows.

    If several rows differ in the same way, the fastest is returned.
    """
    differs = {name: columns[name] != columns[name][best] for name in LAYOUT_PARAMETERS}
    num_different = np.sum(list(differs.values()), axis=0)
    rows: list[int] = []
    for name in LAYOUT_PARAMETERS:
        num_allowed = differs[name].astype(np.int64)
        if name in _FOLLOWERS:
            num_allowed += differs[_FOLLOWERS[name]]
        candidates = np.flatnonzero(differs[name] & (num_different == num_allowed))
        values, value_of_best = columns[name][candidates], columns[name][best]
        below, above = values[values < value_of_best], values[values > value_of_best]
        nearest = [below.max()] if len(below) else []
        nearest += [above.min()] if len(above) else []
        for value in nearest:
            with_value = candidates[values == value]
            rows.append(int(with_value[np.argmin(times[with_value])]))
    return np.array(rows, dtype=np.intp)


def why_worse(neighbour: PlannedLayout, best: PlannedLayout, risk: float) -> str:
    """Say on which parts of the step a neighbour spends more time than the best layout, or that it does not fit.

    `risk`: the probability of running out of memory from which on a layout is not offered.
    """
    if neighbour.out_of_memory_probability >= risk:
        return (
            f"runs out of memory with a probability of {percent(neighbour.out_of_memory_probability)} "
            f"({num_bytes(neighbour.memory_bytes)} expected)"
        )
    slower = neighbour.step_time_s / best.step_time_s - 1.0
    if slower < AS_FAST:
        return "as fast, within half a per cent"
    more_s = {name: part_s - best.parts_s[name] for name, part_s in neighbour.parts_s.items()}
    largest = max(more_s, key=lambda name: more_s[name])
    return f"{percent(slower)} slower: {seconds(more_s[largest])} more {largest.replace('_', ' ')}"


def sensitivity(context: SearchContext, columns: Columns, best: int) -> dict[str, float]:
    """Return, for each property of the machine, the factor on the best layout's step time if the property doubles."""
    constants = from_logs(context.calibration.logs)
    inputs = context.inputs(columns, np.array([best], dtype=np.intp))
    fields = {name: getattr(inputs, name) for name in FIELDS}
    base_s = step_time(inputs, constants).total_s[0]

    def factor(**changed: float) -> float:
        changed_s = step_time(CostModelInputs(**(fields | changed)), constants).total_s[0]
        return float(changed_s) / float(base_s)

    return {
        "network_bandwidth_x2": factor(nic=inputs.nic * 2),
        "nvlink_bandwidth_x2": factor(link=inputs.link * 2),
        "memory_bandwidth_x2": factor(
            memory_rate=inputs.memory_rate * 2, balance=inputs.balance / 2, half_balance=inputs.half_balance / 2
        ),
        "matmul_rate_x2": factor(
            matmul_peak=inputs.matmul_peak * 2,
            half_peak=inputs.half_peak * 2,
            balance=inputs.balance * 2,
            half_balance=inputs.half_balance * 2,
        ),
    }
