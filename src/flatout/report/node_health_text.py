"""The health of a node as lines: the first one is short, for health checks that keep one line."""

from __future__ import annotations

from flatout.records.watch import DrainCost, GpuAdvice, NodeHealth
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle, visible

_ACTIONS = {
    "none": "nothing to do",
    "restart_job": "restart the job",
    "reset_gpu": "reset the GPU",
    "drain": "drain the node",
}
_SHOWN_COST = ".3g"


def node_health_lines(health: NodeHealth, style: TextStyle) -> list[str]:
    """Return the verdict, then a line for each GPU with Xids, then what draining and waiting cost."""
    lines = [style.bold(_verdict(health))]
    lines += [line for gpu in health.gpus for line in style.wrapped(_gpu_sentence(gpu), indent="  ")]
    if health.cost is not None:
        lines += style.wrapped(_cost_sentence(health.cost))
    if health.is_excerpt:
        lines += style.wrapped("the log is an excerpt: faults before it are unknown", label="note: ")
    return lines


def _verdict(health: NodeHealth) -> str:
    if not health.needs_action:
        return "no Xid calls for an action on this node"
    is_drain = any(gpu.action == "drain" for gpu in health.gpus)
    num_gpus = sum(gpu.action in ("reset_gpu", "drain") for gpu in health.gpus)
    what = "drain this node" if is_drain else "reset before the next job"
    return f"{what}: {counted(num_gpus, 'GPU')} with errors"


def _gpu_sentence(gpu: GpuAdvice) -> str:
    xid = f"Xid {gpu.xid}" if gpu.xid is not None else "no Xid"
    return (
        f"{visible(gpu.address)}: {_ACTIONS[gpu.action]} ({xid}, {gpu.reason}; {counted(gpu.num_xids, 'Xid')} in total)"
    )


def _cost_sentence(cost: DrainCost) -> str:
    low, high = (format(value, _SHOWN_COST) for value in cost.wait_gpu_h)
    drain = format(cost.drain_gpu_h, _SHOWN_COST)
    costs = f"draining now costs {drain} GPU-hours, waiting {low} to {high} (assumed probabilities of a failure)"
    return f"{costs}: {_comparison(cost)}"


def _comparison(cost: DrainCost) -> str:
    if cost.pays:
        return "draining costs less"
    return "which costs less is unknown" if cost.may_pay else "waiting costs less"
