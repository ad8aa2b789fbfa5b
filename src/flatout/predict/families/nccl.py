"""NCCL: transfers become faster or slower, depending on the size of the message."""

from __future__ import annotations

import math

import numpy as np

from flatout.predict.replay import Edits
from flatout.predict.situation import Scenarios, Situation, scale
from flatout.records.change import Change
from flatout.records.track import GpuWorkKind

MIB = 1 << 20
# The project's own measurements of all-reduce on H200 over TCP, relative to NCCL's default: 256 MB on four GPUs, and a
# DDP
# bucket of 28 MB on two. At 16 KB the default is fastest; in between, interpolate by the logarithm of the size.
SOCKET_LARGE = {"2x2+8": 3.0 / 13.5, "1x1+16": 2.9 / 14.3}
SMALL_BYTES, LARGE_BYTES = 256 << 10, 32 * MIB


def sockets(situation: Situation, change: Change) -> Scenarios | str:
    measured = SOCKET_LARGE.get(str(change.value))
    return _by_size(
        situation,
        large=measured or 0.3,
        worst=0.6 if measured else 1.0,
        best=0.8 * (measured or SOCKET_LARGE["2x2+8"]),
        how="large messages move over more sockets at once",
        assumption="large messages gain as on H200 over TCP, 3 to 14 GB/s; small ones do not",
    )


def _by_size(
    situation: Situation, *, large: float, worst: float, best: float, how: str, assumption: str
) -> Scenarios | str:
    """Multiply transfers by a ratio from 1 for small messages to `large` for large ones."""
    sizes = {
        rank: [(row, float(call.num_bytes)) for row, call in situation.calls(rank) if call.num_bytes]
        for rank in situation.tracks
    }
    if not sum(len(s) for s in sizes.values()):
        return "the trace has no collective whose size is known"

    def apply(edits: Edits, ratio: float) -> None:
        for rank, found in sizes.items():
            for row, num_bytes in found:
                share = math.log(num_bytes / SMALL_BYTES) / math.log(LARGE_BYTES / SMALL_BYTES)
                edits[rank].duration_ns[row] *= ratio ** min(max(share, 0.0), 1.0)

    return Scenarios(apply=apply, likely=large, worst=worst, best=best, how=how, assumptions=(assumption,))


def channels(situation: Situation, change: Change) -> Scenarios | str:
    how = f"collectives run in at least {change.value} channels"
    if situation.facts.transport == "socket":
        assumption = "a prior: with 8 channels two tunings on two H200 over TCP became 0.80 and 0.89 times as fast"
        return _by_size(situation, large=1.15, worst=1.5, best=0.7, how=how, assumption=assumption)
    assumption = "a prior: on fast links NCCL's own choice is usually right"
    return _by_size(situation, large=0.97, worst=1.1, best=0.7, how=how, assumption=assumption)


def buffer(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _by_size(
        situation,
        large=0.97,
        worst=1.1,
        best=0.75,
        how="the buffer size of each channel changes",
        assumption="a prior: reports range from nothing to a quarter (NVIDIA/nccl#1530, PR 691)",
    )


def ctas(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _by_size(
        situation,
        large=0.97,
        worst=1.1,
        best=0.8,
        how="each communicator has this number of thread blocks",
        assumption="a prior: no more than the default was measured to gain on NVLink of two H200",
    )


def queue_pairs(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _by_size(
        situation,
        large=0.9,
        worst=1.05,
        best=0.5,
        how="a connection uses several paths",
        assumption="a prior: it helped on bonded RoCE ports (NVIDIA/nccl#1015)",
    )


def no_nvls(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _by_size(
        situation,
        large=1.0,
        worst=1.5,
        best=0.88,
        how="rings instead of NVLink SHARP",
        assumption="a prior: 69 % slower at 2-16 MB to 11 % faster at 64 MB on 8 B300, one measurement",
    )


def max_ctas(situation: Situation, change: Change) -> Scenarios | str:
    """Free SMs for compute during communication; transfers take longer."""
    del change
    beside = {}
    for rank, track in situation.tracks.items():
        comm = np.flatnonzero(track.work == GpuWorkKind.COMMUNICATION)
        kernels = np.flatnonzero(
            np.isin(track.work, (GpuWorkKind.OTHER, GpuWorkKind.MATMUL, GpuWorkKind.PLAIN_MATMUL))
            & (track.launched_by >= 0)
        )
        order = np.argsort(track.start_ns[comm], kind="stable")
        starts = track.start_ns[comm][order]
        reach = np.maximum.accumulate(track.end_ns[comm][order]) if len(comm) else starts
        at = np.searchsorted(starts, track.end_ns[kernels], side="left") - 1
        inside = (at >= 0) & (reach[np.maximum(at, 0)] > track.start_ns[kernels]) if len(comm) else kernels < 0
        beside[rank] = kernels[inside]
    if not sum(len(rows) for rows in beside.values()):
        return "no compute of the trace ran during communication"
    transfers = situation.works(GpuWorkKind.COMMUNICATION)

    def apply(edits: Edits, ratio: float) -> None:
        for rank, rows in beside.items():
            scale(edits, rank, rows, ratio)
            scale(edits, rank, transfers[rank], 1.0 + 2 * (1.0 - ratio))

    return Scenarios(
        apply=apply,
        likely=0.96,
        worst=1.0,
        best=0.85,
        how="compute during communication gets SMs back, and transfers take longer",
        assumptions=("a prior: compute runs 9-32 % longer during a collective that waits",),
    )


def measured(situation: Situation, change: Change) -> Scenarios | str:
    del situation, change
    return "the collectives alone were measured, and how much of them the step waits for is for a trial to show"


MODELS = {
    "nccl-measured": measured,
    "nccl-sockets": sockets,
    "nccl-channels": channels,
    "nccl-ctas": ctas,
    "nccl-buffer": buffer,
    "nccl-queue-pairs": queue_pairs,
    "nccl-no-nvls": no_nvls,
    "nccl-max-ctas": max_ctas,
}
