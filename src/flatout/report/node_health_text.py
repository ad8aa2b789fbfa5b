"""The health of a node as lines: the first one is short, for health checks that keep one line."""

from __future__ import annotations

from flatout.records.watch import DrainCost, GpuAdvice, NodeHealth, NodeSign
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle, visible
from flatout.units import percent

_ACTIONS = {
    "none": "nothing to do",
    "restart_job": "restart the job",
    "reset_gpu": "reset the GPU",
    "drain": "drain the node",
}
_SOURCES = {"gpus": "the counters of the GPUs", "bmc": "some sensors of the BMC"}
_SHOWN_COST = ".3g"


def node_health_lines(health: NodeHealth, style: TextStyle) -> list[str]:
    """Return the verdict, then a line for each GPU with Xids, then what draining and waiting cost."""
    lines = [style.bold(_verdict(health))]
    lines += [line for gpu in health.gpus for line in style.wrapped(_gpu_sentence(gpu), indent="  ")]
    lines += [line for sign in health.signs for line in style.wrapped(_sign_sentence(sign), indent="  ")]
    if health.cost is not None:
        lines += style.wrapped(_cost_sentence(health.cost))
    for source, problem in health.unread.items():
        lines += style.wrapped(f"{_SOURCES[source]} are unknown: {visible(problem)}", label="note: ")
    if health.is_excerpt:
        lines += style.wrapped("the log is an excerpt: faults before it are unknown", label="note: ")
    return lines


def _verdict(health: NodeHealth) -> str:
    if not health.needs_action:
        num_signs = len(health.signs)
        warned = f" ({counted(num_signs, 'warning')})" if num_signs else ""
        return f"nothing calls for an action on this node{warned}"
    actions = [*(gpu.action for gpu in health.gpus), *(sign.action for sign in health.signs)]
    num_grave = sum(action in ("reset_gpu", "drain") for action in actions)
    what = "drain this node" if "drain" in actions else "reset before the next job"
    return f"{what}: {counted(num_grave, 'sign')} of a fault"


def _gpu_sentence(gpu: GpuAdvice) -> str:
    xid = f"Xid {gpu.xid}" if gpu.xid is not None else "no Xid"
    return (
        f"{visible(gpu.address)}: {_ACTIONS[gpu.action]} ({xid}, {gpu.reason}; {counted(gpu.num_xids, 'Xid')} in total)"
    )


def _sign_sentence(sign: NodeSign) -> str:
    where = "this node" if sign.gpu is None else f"GPU {sign.gpu}"
    what = "warning" if sign.action == "none" else _ACTIONS[sign.action]
    return f"{where}: {what} ({sign.reason})"


def _cost_sentence(cost: DrainCost) -> str:
    low, high = (format(value, _SHOWN_COST) for value in cost.wait_gpu_h)
    drain, wait = (format(value, _SHOWN_COST) for value in (cost.drain_gpu_h, cost.typical_wait_gpu_h))
    costs = f"draining now costs {drain} GPU-hours, waiting costs {wait} ({low} to {high})"
    chance = cost.probability
    likely = f"{percent(chance.typical)} ({percent(chance.low)} to {percent(chance.high)})"
    why = f"a failure within {cost.horizon_days} days has a probability of {likely}, {chance.source}"
    return f"{costs}: {_comparison(cost)}. {why[0].upper()}{why[1:]}."


def _comparison(cost: DrainCost) -> str:
    if cost.pays:
        return "draining costs less"
    return "which costs less is unknown" if cost.may_pay else "waiting costs less"
