"""Judge a node by its kernel log. In: the log, and what a stop costs the job on the node. Out: `NodeHealth`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.doctor.parse.kernel_log import parse_kernel_log
from flatout.errors import InputError
from flatout.input_files import bounded_log, read_text
from flatout.probe.snapshot import read_kernel_log
from flatout.records.watch import DrainCost, GpuAdvice, NodeAction, NodeHealth
from flatout.watch.health.expected_loss import DRAIN_PROBABILITY, RESET_PROBABILITY, StopCosts, drain_cost
from flatout.watch.health.xid_actions import advise

_DETECT_S = 60.0


class NodeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What `flatout watch node` was asked. Without `job_gpus`, nothing is weighed."""

    job_gpus: int | None
    node_gpus: int
    checkpoint_interval_s: float
    restart_s: float
    repair_s: float


def judge_node(log: Path | None, question: NodeQuestion) -> NodeHealth:
    """Return the actions for the node. Raise InputError if its log cannot be read."""
    parsed = parse_kernel_log(bounded_log(_text_of(log)))
    gpus = advise(parsed.xids)
    seen = {gpu.address for gpu in gpus}
    lost = [address for address in parsed.off_bus if address not in seen]
    gpus += tuple(
        GpuAdvice(address=address, action="drain", xid=None, num_xids=0, reason="the GPU has fallen off the bus")
        for address in lost
    )
    actions = {gpu.action for gpu in gpus}
    return NodeHealth(
        gpus=gpus,
        needs_action=bool(actions & {"reset_gpu", "drain"}),
        is_excerpt=parsed.is_excerpt,
        cost=_cost(actions, question),
    )


def _cost(actions: set[NodeAction], question: NodeQuestion) -> DrainCost | None:
    if question.job_gpus is None or not actions & {"reset_gpu", "drain"}:
        return None
    costs = StopCosts(
        job_gpus=question.job_gpus,
        node_gpus=question.node_gpus,
        checkpoint_interval_s=question.checkpoint_interval_s,
        save_s=0.0,  # in the time to restart
        restart_s=question.restart_s,
        detect_s=_DETECT_S,
        repair_s=question.repair_s,
    )
    return drain_cost(DRAIN_PROBABILITY if "drain" in actions else RESET_PROBABILITY, costs)


def _text_of(log: Path | None) -> str:
    if log is None:
        output = read_kernel_log()
        if output.text is None:
            raise InputError(f"the kernel log cannot be read: {output.problem}", hint="run it as root, or pass --log")
        return output.text
    try:
        return read_text(log, errors="replace")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{log} cannot be read: {reason}", hint="pass what dmesg prints as --log") from error
