"""DistributedDataParallel: fewer or smaller all-reduces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.predict.bucket_plan import Readiness, end_ns, readiness
from flatout.predict.collective_cost import CollectiveCost, fitted
from flatout.predict.gradient_exchange import COMPRESSIONS, MEASURED_RANGE, PLAIN, PRIOR_RANGE, exchange_of
from flatout.predict.replay import Edits
from flatout.predict.situation import Scenarios, Situation, remove, scale
from flatout.records.change import Change
from flatout.records.track import GpuWorkKind

MIB = 1 << 20
Rows = NDArray[np.int64]
_DEVICES = {"cuda": "GPU", "cpu": "CPU"}
FULL = 0.97  # a bucket is closed by the parameter that fills it, so this share of the size counts as full


def bucket(situation: Situation, change: Change) -> Scenarios | str:
    """Join consecutive all-reduces into one, launched at the place of the last; its cost follows from its size."""
    size = int(change.value) * MIB
    cost = fitted(situation, "all_reduce")
    if cost is None:
        return "the trace has no all-reduce whose size is known"
    groups = {rank: list(_groups(situation, rank, size)) for rank in situation.tracks}
    if not any(len(rows) > 1 for found in groups.values() for rows, _ in found):
        return _smaller_buckets(situation, size, cost)

    def apply(edits: Edits, factor: float) -> None:
        for rank, found in groups.items():
            for rows, num_bytes in found:
                if len(rows) == 1:
                    continue
                # Never cheaper than the bytes alone, nor more expensive than the parts together.
                together = float(edits[rank].duration_ns[rows].sum())
                one = min(max(cost.transfer_ns(num_bytes), together - cost.alpha_ns * (len(rows) - 1)), together)
                saved = (together - one) * factor
                remove(edits, rank, rows[:-1])
                edits[rank].duration_ns[rows[-1]] = together - saved

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.0,
        best=3.0,  # larger messages also use the network better than the linear fit predicts
        how=(
            f"all-reduces are joined up to {change.value} MiB; one costs "
            f"{cost.alpha_ns / 1e3:.0f} us and {1 / max(cost.beta_ns_per_byte, 1e-9):.3g} GB/s"
        ),
        assumptions=("large messages have the rate of the trace's",),
    )


def _smaller_buckets(situation: Situation, size: int, cost: CollectiveCost) -> Scenarios | str:
    """End each step's exchange as much earlier or later as smaller buckets do by the plan of the buckets."""
    steps = {rank: readiness(situation, rank) for rank in situation.tracks}
    if not all(steps.values()):
        return "the trace has too few buckets to show how gradients would be divided"
    saved_ns = {
        rank: [_traced_end_ns(step, cost) - end_ns(step, size, cost) for step in found] for rank, found in steps.items()
    }
    how = f"buckets of {size // MIB} MiB begin to be reduced earlier, and the last one is small"
    return _by_the_plan(situation, saved_ns, how)


def first_bucket(situation: Situation, change: Change) -> Scenarios | str:
    """End each step's exchange as much earlier or later as another first bucket does by the plan of the buckets."""
    cost = fitted(situation, "all_reduce")
    steps = {rank: readiness(situation, rank) for rank in situation.tracks}
    if cost is None or not all(steps.values()):
        return "the trace has too few buckets to show how gradients would be divided"
    first_bytes = float(int(change.value) * MIB)
    saved_ns = {
        rank: [
            end_ns(step, step.largest_bucket, cost, step.first_bucket)
            - end_ns(step, step.largest_bucket, cost, first_bytes)
            for step in found
        ]
        for rank, found in steps.items()
    }
    how = f"the first bucket of {change.value} MiB begins to be reduced as soon as it is full"
    return _by_the_plan(situation, saved_ns, how)


def _by_the_plan(situation: Situation, saved_ns: Mapping[int, Sequence[float]], how: str) -> Scenarios:
    """Make the last all-reduce of each rank's steps as much shorter as the plan of the buckets ends earlier."""

    def apply(edits: Edits, factor: float) -> None:
        for rank, saved in saved_ns.items():
            for row, earlier_ns in zip(_last_rows(situation, rank), saved, strict=False):
                edits[rank].duration_ns[row] = max(edits[rank].duration_ns[row] - earlier_ns * factor, 0.0)

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.0,
        best=1.5,
        how=how,
        assumptions=("gradients become ready evenly between the trace's buckets",),
    )


def _traced_end_ns(step: Readiness, cost: CollectiveCost) -> float:
    """Return when the exchange ends with the trace's own buckets."""
    free_ns = 0.0
    for size, ready_ns in zip(np.diff(step.num_bytes).tolist(), step.at_ns[1:].tolist(), strict=True):
        free_ns = max(free_ns, ready_ns) + cost.transfer_ns(size)
    return free_ns


def _last_rows(situation: Situation, rank: int) -> list[int]:
    """Return the last all-reduce of each step."""
    rows = np.array([row for row, call in situation.calls(rank, "all_reduce") if call.num_bytes], dtype=np.int64)
    steps = situation.steps_of(rank, rows)
    return [int(rows[steps == step][-1]) for step in np.unique(steps).tolist()]


def _groups(situation: Situation, rank: int, size: int) -> Iterator[tuple[Rows, int]]:
    """Yield the rows of consecutive all-reduces of one pass that fit into one bucket, with their bytes."""
    rows: list[int] = []
    total, place = 0, (-1, -1)
    passes = situation.timelines[rank].facts
    for row, call in situation.calls(rank, "all_reduce"):
        if not call.num_bytes:
            continue
        step = int(situation.steps_of(rank, np.array([row]))[0])
        kernel = int(situation.tracks[rank].communication[row])
        here = (step, int(passes.communication_pass[kernel]) if passes is not None else 0)
        if rows and (here != place or total >= FULL * size or total + call.num_bytes > 1.5 * size):
            yield np.array(rows), total
            rows, total = [], 0
        rows.append(row)
        total += call.num_bytes
        place = here
    if rows:
        yield np.array(rows), total


def no_sync(situation: Situation, change: Change) -> Scenarios | str:
    """Remove the reductions of all passes of a step except the last."""
    return without_early_reductions(situation, change, "all_reduce")


def without_early_reductions(situation: Situation, change: Change, operation: str) -> Scenarios | str:
    del change
    needless = {rank: _of_early_passes(situation, rank, operation) for rank in situation.tracks}
    if not sum(len(rows) for rows in needless.values()):
        return "the trace shows no reduction before a step's last pass"

    def apply(edits: Edits, factor: float) -> None:
        for rank, rows in needless.items():
            remove(edits, rank, rows[: round(len(rows) * factor)])

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.9,
        best=1.0,
        how="reductions before the last pass of a step are skipped",
        assumptions=("the script takes gradients only after the last pass",),
    )


def _of_early_passes(situation: Situation, rank: int, operation: str) -> Rows:
    facts = situation.timelines[rank].facts
    rows = np.array([row for row, _ in situation.calls(rank, operation)], dtype=np.int64)
    if facts is None or not len(rows):
        return rows[:0]
    passes = facts.communication_pass[situation.tracks[rank].communication[rows]]
    steps = situation.steps_of(rank, rows)
    last = {step: passes[steps == step].max() for step in np.unique(steps).tolist()}
    return rows[passes < np.array([last[step] for step in steps.tolist()])]


def compression(situation: Situation, change: Change) -> Scenarios | str:
    """Exchange each bucket compressed, on the link that the trace's own all-reduces show."""
    cost = fitted(situation, "all_reduce")
    if cost is None:
        return "the trace has no all-reduce whose size is known"
    if change.value not in COMPRESSIONS:
        return f"there is no model for {change.value}"
    num_ranks = situation.facts.num_ranks or len(situation.tracks)
    link = cost.link("all_reduce", num_ranks)
    device = situation.facts.device or "cuda"
    codec_ns = situation.facts.codec_ns
    is_measured = codec_ns is not None and change.value in codec_ns
    least, most = MEASURED_RANGE if is_measured else PRIOR_RANGE
    source = "as measured on this machine" if is_measured else "as on another machine: a prior"

    def apply(edits: Edits, factor: float) -> None:
        for rank in situation.tracks:
            for row, call in situation.calls(rank, "all_reduce"):
                num_bytes = call.num_bytes or 0
                size = call.group_size or num_ranks
                plain_s = exchange_of(PLAIN, num_bytes, size).link_s(link, size)
                compressed = exchange_of(change.value, num_bytes, size, device, codec_ns)
                share = compressed.link_s(link, size) / plain_s if plain_s > 0 else 1.0
                edits[rank].duration_ns[row] *= share
                edits[rank].duration_ns[row] += compressed.codec_s * 1e9 * factor

    example = exchange_of(change.value, 1.0, num_ranks).wire_bytes(num_ranks)
    plain = exchange_of(PLAIN, 1.0, num_ranks).wire_bytes(num_ranks)
    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=most,
        best=least,
        how=(
            f"with {num_ranks} ranks, gradients take {example / plain:.0%} of their bytes on links of"
            f" {link.bytes_per_s / 1e9:.3g} GB/s, and compressing them takes time on the {_DEVICES[device]}"
        ),
        assumptions=(f"compressing takes as long per byte {source}",),
    )


def local_sgd(situation: Situation, change: Change) -> Scenarios | str:
    """Exchange weights once every N steps in place of the gradients of each: the mean step has a share of it."""
    every = int(change.value.rpartition("-")[2])
    rows = {
        rank: np.array([row for row, _ in situation.calls(rank, "all_reduce")], dtype=np.int64)
        for rank in situation.tracks
    }
    if not sum(len(r) for r in rows.values()):
        return "the trace has no all-reduce"

    def apply(edits: Edits, factor: float) -> None:
        for rank, mine in rows.items():
            scale(edits, rank, mine, min(factor / every, 1.0))

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=2.0,  # nothing hides the exchange of weights, and ranks that drift apart wait for each other
        best=1.0,
        how=f"weights are exchanged once in {every} steps, and gradients never",
        assumptions=("an average of the weights takes as long as the gradients of one step",),
    )


def bucket_view(situation: Situation, change: Change) -> Scenarios | str:
    """Remove the copies between gradients and buckets."""
    del change
    rows = situation.works(GpuWorkKind.COPY_ON_DEVICE)
    if not sum(len(r) for r in rows.values()):
        return "the trace has no copies on the device"

    def apply(edits: Edits, factor: float) -> None:
        for rank, mine in rows.items():
            scale(edits, rank, mine, factor)

    return Scenarios(
        apply=apply,
        likely=0.4,
        worst=1.0,
        best=0.0,
        how="the device no longer copies gradients to and from buckets",
        assumptions=("the trace does not show which copies are DDP's: 60 % of their time is a prior",),
    )


def static_graph(situation: Situation, change: Change) -> str:
    del situation, change
    return "a trace does not show what the search for unused parameters costs"


MODELS = {
    "ddp-bucket": bucket,
    "ddp-first-bucket": first_bucket,
    "ddp-no-sync": no_sync,
    "ddp-compression": compression,
    "local-sgd": local_sgd,
    "ddp-bucket-view": bucket_view,
    "ddp-static-graph": static_graph,
}
