"""Transfer over the network or the links between GPUs is not hidden behind compute.

What it means
    Only communication kernels run, and every participating rank has arrived, so data is being transferred.

Why it costs
    The GPU's compute units are idle meanwhile. Either the transfer is too slow for the amount of data (slow transport,
    small messages), or it begins too late to overlap with compute.

Evidence
    Exposed and total transfer time per step, by operation; bytes; and the bus bandwidth that large collectives reached
    (as nccl-tests defines it). Compare it with what the link should reach: tens of GB/s for a good network, hundreds
    for NVLink. A few GB/s indicate TCP sockets.

Change to try
    First check that NCCL uses the intended transport (`NCCL_DEBUG=INFO`). Then tune the settings of that transport, use
    larger gradient buckets or more overlap, or send fewer bytes (bf16 gradients, `rounding`).

When this is wrong
    If the traces of other ranks are missing, waiting and transfer cannot be told apart and the finding is inconclusive:
    a late rank may be the cause. A transfer is slower while the compute of another rank uses the same link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import finding, share_words
from flatout.diagnose.host_evidence import network_rate
from flatout.records.diagnosis import Finding, Part
from flatout.units import seconds

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
ON_GPU = (
    "check which transport is used: NCCL_DEBUG=INFO (TCP sockets instead of NVLink or InfiniBand?)",
    "the transport's own settings, e.g. NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD, NCCL_MIN_NCHANNELS",
)
ON_CPU = ("check which network interface is used: GLOO_SOCKET_IFNAME",)
MIN_BANDWIDTH_BYTES = 2**20  # smaller messages show latency, not bandwidth


def find(context: DiagnosisContext) -> list[Finding]:
    unsplit = context.claim(Part.COMMUNICATION_UNSPLIT, context.available(Part.COMMUNICATION_UNSPLIT))
    transfer = context.claim(Part.TRANSFER, context.available(Part.TRANSFER))
    cost = transfer + unsplit
    if cost <= 0:
        return []
    is_known = unsplit < 0.5 * cost
    is_split = bool(context.own[:, [Part.TRANSFER, Part.WAIT, Part.BUBBLE]].sum() > 0)  # else 0 means unknown
    total = _total_transfer(context)
    bandwidth = bus_bandwidth(context)
    title = (
        f"{seconds(cost)} of communication {context.period} ({share_words(context, cost)}) is not hidden behind compute"
    )
    if is_known and bandwidth is not None:
        title += f"; large collectives reach {bandwidth / 1e9:.3g} GB/s"
    if not is_known:
        alone = len(context.ranks) < 2 or bool(context.job.missing_ranks)
        title += "; without the other ranks' traces" if alone else "; because it cannot be matched between the ranks"
        title += ", it may be waiting or transfer"
    evidence = {
        "exposed_transfer_s": float(context.own[:, Part.TRANSFER].mean()) if is_split else None,
        "exposed_unsplit_s": float(context.own[:, Part.COMMUNICATION_UNSPLIT].mean()),
        "total_transfer_s": total if is_split else None,
        "hidden_share": 1 - min(float(context.own[:, Part.TRANSFER].mean()) / total, 1) if total and is_known else None,
        "exposed_by_operation_s": _by_operation(context),
        "bus_bandwidth_bytes_per_s": bandwidth,
        "backend": next((t.meta.backend for t in context.ranks if t.meta.backend), None),
    }
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=title,
        ranks=tuple(t.rank for t in context.ranks),
        cost_s=cost,
        evidence=evidence,
        changes=(
            *(() if is_known else ("record the other ranks too, and diagnose all of them together",)),
            *(ON_GPU if context.has_gpu else ON_CPU),
            "larger gradient buckets: DistributedDataParallel(bucket_cap_mb=...)",
            "fewer bytes: a bf16 compression hook (rounding)",
        ),
        safety="exact",
        confidence="high" if is_known else "inconclusive",
    )


def bus_bandwidth(context: DiagnosisContext) -> float | None:
    """Return the median bus bandwidth of the collectives with the most bytes, in bytes/s; None if unknown."""
    rates = []
    for match in context.job.matches:
        factor = BUS_FACTOR.get(match.operation)
        if factor is None or not match.is_complete or (match.num_bytes or 0) < MIN_BANDWIDTH_BYTES:
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
