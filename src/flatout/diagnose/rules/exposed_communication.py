"""Transfer between ranks is not hidden behind compute.

What it means
    Only communication kernels run, and every participating rank has arrived, so data is being transferred.

Why it costs
    The GPU's compute units are idle meanwhile. Either the transfer is too slow for the amount of data (slow transport,
    small messages), or it begins too late to overlap with compute.

Evidence
    Exposed and total transfer time per step, by operation and by what is carried (gradients, shards of weights,
    activations, tokens of experts); the number and the median size of the messages; and the bus bandwidth that large
    collectives reached (as nccl-tests defines it). Compare it with what the link should reach: tens of GB/s for a good
    network, hundreds for NVLink. A few GB/s indicate TCP sockets. `embedding_gradient_share` is the largest embedding's
    part of the gradients' bytes, and `embedding_rows_used_share` the part of its rows that had a gradient.

Change to try
    Small messages cost latency: send fewer, larger ones (larger gradient buckets with DDP, larger units with FSDP,
    larger bucket sizes with ZeRO). Large messages at a low rate: check that NCCL uses the intended transport
    (`NCCL_DEBUG=INFO`). Large messages at a good rate: hide them behind compute, or send fewer bytes. Tensor groups
    that span nodes: place each within a node (`flatout plan place`). A large embedding of which a step uses few rows:
    exchange only these, as sparse gradients.

When this is wrong
    If the traces of other ranks are missing, waiting and transfer cannot be told apart and the finding is inconclusive:
    a late rank may be the cause. A transfer is slower while the compute of another rank uses the same link. What is
    carried follows from the wrapper that the trace names, the operations, and when in the step they occur: a
    hand-written scheme may be taken for another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.by_group import communication_by_group
from flatout.diagnose.communication_advice import advice
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, share_words
from flatout.diagnose.host_evidence import network_rate
from flatout.diagnose.placement_advice import placement_advice
from flatout.diagnose.sparse_embedding import sparse_embedding
from flatout.diagnose.traffic import SMALL_MESSAGE_BYTES, Traffic, TrafficKind, traffic_of, wrapper_of
from flatout.records.diagnosis import Finding, Part
from flatout.units import num_bytes

CODE = "F02"
NAME = "exposed-communication"
HOST_EVIDENCE = (network_rate,)
# Bus bandwidth over algorithm bandwidth, by ranks n (nccl-tests, doc/PERFORMANCE.md).
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
# A launch so soon after a transfer's end may have waited for it in a way that no trace shows: in ns, and as a share of
# the exposed time.
FOLLOWS_NS = 50_000
FOLLOWS_SHARE = 0.25
MAX_ADVICE = 6  # changes to try; the likeliest come first
DOMINATING_SHARE = 0.3  # of the step; above it, more samples between two exchanges are advised


def find(context: DiagnosisContext) -> list[Finding]:
    unsplit = context.claim(Part.COMMUNICATION_UNSPLIT, context.available(Part.COMMUNICATION_UNSPLIT))
    transfer = context.claim(Part.TRANSFER, context.available(Part.TRANSFER))
    not_blocking_s = _not_blocking_s(context)
    exposed_s = float(context.own[:, [Part.TRANSFER, Part.COMMUNICATION_UNSPLIT]].sum()) / max(len(context.ranks), 1)
    cost = (transfer + unsplit) * (1 - not_blocking_s / exposed_s) if exposed_s > 0 else 0.0
    if cost <= 0:
        return []
    is_known = unsplit < 0.5 * (transfer + unsplit)
    lacks_ranks = bool(context.job.missing_ranks) or (context.job.world_size is None and len(context.ranks) < 2)
    bandwidth = bus_bandwidth(context)
    traffic = traffic_of(context)
    title = (
        f"{cost_time(context, cost)} of communication {context.period} ({share_words(context, cost)})"
        " is not hidden behind compute"
    )
    title += _messages_words(context, traffic)
    title += _certainty_words(bandwidth, is_known=is_known, lacks_ranks=lacks_ranks)
    changes = advice(traffic, wrapper_of(context), bandwidth=bandwidth if is_known else None, has_gpu=context.has_gpu)
    changes = (*placement_advice(context, communication_by_group(context)), *changes)
    batch_gain = _gain_of_doubled_batch(context, traffic, cost)
    evidence = _evidence(context, traffic, bandwidth, is_known=is_known)
    evidence["not_blocking_s"] = not_blocking_s
    last = []  # changes to the training
    embedding = sparse_embedding(context.job_facts)
    if embedding is not None:
        evidence["embedding_gradient_share"] = embedding.share_of_gradients
        evidence["embedding_rows_used_share"] = embedding.rows_used
        last.append(embedding.advice)
    if batch_gain is not None:
        evidence["doubled_batch_ratio"] = batch_gain
        last.append(_batch_words(batch_gain))
    changes = (*changes[: MAX_ADVICE - len(last)], *last)
    if lacks_ranks and not is_known:
        changes = ("record the other ranks too, and diagnose all of them together", *changes)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=title,
        ranks=tuple(t.rank for t in context.ranks),
        cost_s=cost,
        evidence=evidence,
        changes=changes,
        safety="exact",
        confidence="high" if is_known else "inconclusive",
    )


def _not_blocking_s(context: DiagnosisContext) -> float:
    """Return the exposed communication that nothing waits for: what follows it was launched only later.

    It is the mean over the ranks, in seconds per step. Faster communication would leave the GPU idle instead.
    """
    not_blocking_ns = 0
    for timeline in context.ranks:
        communication = timeline.communication
        if communication.next_launch_ns is None:
            continue
        exposed = context.job.exposed_transfer_ns[timeline.rank] + context.job.exposed_unsplit_ns[timeline.rank]
        exposed = np.where(communication.start_ns >= timeline.first_step_ns, exposed, 0)
        next_launch_ns, began_ns = communication.next_launch_ns, communication.end_ns - exposed
        is_late = (next_launch_ns > began_ns) & ~follows_an_end(next_launch_ns, communication.end_ns, exposed)
        until_launch = np.where(is_late, next_launch_ns - began_ns, 0)
        not_blocking_ns += int(np.minimum(until_launch, exposed).sum())
    return context.per_step(not_blocking_ns / 1e9 / max(len(context.ranks), 1))


def follows_an_end(
    launch_ns: NDArray[np.int64], end_ns: NDArray[np.int64], exposed_ns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether each launch comes soon after the end of some communication, for which the host may have waited."""
    ends = np.sort(end_ns)
    last = np.searchsorted(ends, launch_ns, side="right") - 1
    since_end_ns = launch_ns - ends[np.maximum(last, 0)]
    return np.asarray((last >= 0) & (since_end_ns < np.maximum(FOLLOWS_NS, FOLLOWS_SHARE * exposed_ns)))


def _gain_of_doubled_batch(context: DiagnosisContext, traffic: Sequence[Traffic], cost_s: float) -> float | None:
    """Return how many times as fast a sample becomes if a step has two times the samples and the same exchange.

    None unless gradients are what is exchanged, and take much of the step. Twice the compute could also hide more of
    them, which is not counted.
    """
    is_of_gradients = bool(traffic) and traffic[0].kind in (TrafficKind.GRADIENTS, TrafficKind.GRADIENT_SHARDS)
    share = context.share_of_job(cost_s)
    if not is_of_gradients or not context.num_steps or share < DOMINATING_SHARE:
        return None
    return 2 / (2 - share)


def _batch_words(gain: float) -> str:
    return (
        "exchange gradients for more samples at once: a batch twice as large, or two passes of which only the last"
        f" reduces, would make a sample {gain:.2f} times as fast, if memory and the training allow it"
    )


def _certainty_words(bandwidth: float | None, *, is_known: bool, lacks_ranks: bool) -> str:
    """Say what rate the transfer reached, or why it may be waiting instead."""
    if not is_known:
        reason = "without the other ranks' traces" if lacks_ranks else "because it cannot be matched between the ranks"
        return f"; {reason}, it may be waiting or transfer"
    if bandwidth is None:
        return ""
    return f"; large collectives reach {bandwidth / 1e9:.3g} GB/s"


def _evidence(
    context: DiagnosisContext, traffic: Sequence[Traffic], bandwidth: float | None, *, is_known: bool
) -> dict[str, object]:
    """Return the measured values; None for those that the traces do not show."""
    exposed = float(context.own[:, Part.TRANSFER].mean())
    total = _total_transfer(context)
    is_split = bool(context.own[:, [Part.TRANSFER, Part.WAIT, Part.BUBBLE]].sum() > 0)  # else 0 means unknown
    return {
        "exposed_transfer_s": exposed if is_split else None,
        "total_transfer_s": total if is_split else None,
        "hidden_share": 1 - min(exposed / total, 1) if total and is_known else None,
        "exposed_by_content_s": {str(each.kind): each.exposed_s for each in traffic if each.exposed_s > 1e-9},
        "num_messages_per_step": sum(each.num_messages for each in traffic),
        "message_bytes": {str(each.kind): each.message_bytes for each in traffic},
        "bus_bandwidth_bytes_per_s": bandwidth,
        "exposed_by_operation_s": _by_operation(context),
        "exposed_unsplit_s": float(context.own[:, Part.COMMUNICATION_UNSPLIT].mean()),
        "backend": next((t.meta.backend for t in context.ranks if t.meta.backend), None),
    }


def _messages_words(context: DiagnosisContext, traffic: Sequence[Traffic]) -> str:
    """Say how many messages of what size carry the kind of data with the most exposed time."""
    if not traffic:
        return ""
    most = traffic[0]
    number = f"{most.num_messages:,.0f}"
    is_one = number == "1"
    words = f"; {number} message{'' if is_one else 's'} {context.period}"
    if most.kind is not TrafficKind.OTHER:
        words += f" {'carries' if is_one else 'carry'} {most.kind}"
    if most.message_bytes is not None:
        words += f", {num_bytes(most.message_bytes)}" + ("" if is_one else " each")
    return words


def bus_bandwidth(context: DiagnosisContext) -> float | None:
    """Return the median bus bandwidth of the collectives with the most bytes, in bytes/s; None if unknown."""
    rates = []
    for match in context.job.matches:
        factor = BUS_FACTOR.get(match.operation)
        if factor is None or not match.is_complete or (match.num_bytes or 0) < SMALL_MESSAGE_BYTES:
            continue
        transfer = []
        for rank, kernel in match.kernels.items():
            timeline = context.ranks[context.row[rank]]
            transfer.append(
                int(timeline.communication.end_ns[kernel]) - int(context.job.arrivals[rank].until_ns[kernel])
            )
        length = float(np.median(transfer))
        if length > 0 and match.num_bytes:
            rates.append((match.num_bytes, match.num_bytes / (length / 1e9) * factor(len(match.kernels))))
    if not rates:
        return None
    largest = max(size for size, _ in rates)
    return float(np.median([rate for size, rate in rates if size >= largest / 4]))


def _total_transfer(context: DiagnosisContext) -> float:
    """Return the transfer time of all kernels, hidden or not: the mean over the ranks, in seconds per step."""
    sums = []
    for timeline in context.ranks:
        arrival = context.job.arrivals[timeline.rank]
        rows = arrival.is_known & (timeline.communication.start_ns >= timeline.first_step_ns)
        sums.append(float((timeline.communication.end_ns - arrival.until_ns)[rows].sum()) / 1e9)
    return context.per_step(float(np.mean(sums))) if sums else 0.0


def _by_operation(context: DiagnosisContext) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for timeline in context.ranks:
        exposed = context.job.exposed_transfer_ns[timeline.rank] + context.job.exposed_unsplit_ns[timeline.rank]
        operations = {call.kernel: call.operation for call in timeline.communication.calls}
        for kernel in np.flatnonzero(timeline.communication.start_ns >= timeline.first_step_ns):
            sums[operations[int(kernel)]] += float(exposed[kernel]) / 1e9 / len(context.ranks)
    # Collectives without a separate event type (functional ones on the CPU) have no operation.
    exposed = context.own[:, [Part.TRANSFER, Part.COMMUNICATION_UNSPLIT]].sum() / max(len(context.ranks), 1)
    by_operation = {name: context.per_step(s) for name, s in sums.items()}
    by_operation["other"] = float(exposed) - sum(by_operation.values())
    return {name: s for name, s in sorted(by_operation.items(), key=lambda item: -item[1]) if s > 1e-9}
