"""The DataLoader: batches loaded during the steps, and copies that are faster or do not block the host."""

from __future__ import annotations

import math

import numpy as np

from flatout.predict.replay import Edits
from flatout.predict.situation import SINGLE_PROCESS, Scenarios, Situation, scale
from flatout.records.change import Change, JobFacts
from flatout.records.track import GpuWorkKind, Spent, TrackNode
from flatout.units import percent

HAND_OVER_S = 0.5e-3  # taking a finished batch from a worker
LEAST_BUSY = 0.8  # of the time in which cores are busy: the rest may be a thread that waits for another one, spinning
SAVED_BY_FEWER = 0.9  # of the time in the loader, at best
PINNED_BYTES_PER_S = 40e9  # prior: host to device over PCIe 5 x16, 50 GB/s by design; PCIe 4: 25


def workers(situation: Situation, change: Change) -> Scenarios | str:
    """Predict a number of workers; not where it is meant for the start of an epoch, which no trace of steps has."""
    if "epoch-boundary" in change.predicted_from:
        return epoch_starts(situation, change)
    return _workers(situation, change)


def _workers(situation: Situation, change: Change) -> Scenarios | str:
    """Remove the loader's time from the step, which then takes at least a batch's cost divided among the workers."""
    asked = int(change.value)
    facts = situation.facts
    if not situation.pace_s and asked < (facts.loader_workers or 0):
        return _fewer_workers(situation, asked)
    if asked < len(facts.loader_pace_s) and situation.spent_s(Spent.DATA_LOADING) > 0:
        return _by_stages(situation, facts.loader_pace_s[asked], asked)
    cost_s = _batch_s(situation)
    if isinstance(cost_s, str):
        return cost_s
    cores = facts.worker_cores if facts.worker_cores is not None else float(asked)
    share = facts.loader_cpu_share if facts.loader_cpu_share is not None else 1.0  # of a core that a worker needs
    at_once = min(float(asked), cores / max(share, 1e-3))
    is_more = bool(situation.pace_s) and asked >= (facts.loader_workers or 0)
    most_s = situation.pace_s if is_more else math.inf
    busy_s = situation.step_s / (facts.cores_speedup or math.inf)

    def apply(edits: Edits, factor: float) -> float:
        _hand_over_only(situation, edits)
        made_s = cost_s / at_once * factor
        on_all_cores_s = busy_s * max(factor, LEAST_BUSY)
        # More workers than now cannot make the pace worse; it already includes that they share cores.
        return min(max(made_s, on_all_cores_s), most_s)

    return Scenarios(
        apply=apply,
        likely=1.1,
        worst=1.7,  # workers share memory bandwidth and cores
        best=at_once / asked,  # workers that wait for storage take no core
        how=f"a batch costs {cost_s * 1e3:.1f} ms; {at_once:g} workers make batches during the steps",
        assumptions=(
            "a batch costs a worker as much as it costs the training process",
            *((f"a worker keeps a core busy for {percent(share)} of its time",) if share < 1 else ()),
            *_what_cores_allow(facts),
        ),
        frees_pace=True,
    )


def _what_cores_allow(facts: JobFacts) -> tuple[str, ...]:
    """Say by how much the job can use more of the cores, where that is known."""
    if facts.cores_speedup is None:
        return ()
    return (f"all cores that the job can use do its work at most {facts.cores_speedup:.2f} times as fast",)


def _hand_over_only(situation: Situation, edits: Edits) -> None:
    """Remove the loader's time but for taking finished batches."""
    for rank, track in situation.tracks.items():
        loading = track.spent_ns[:, Spent.DATA_LOADING]
        batches = max(int((loading > 0).sum()), 1)
        left = min(1.0, HAND_OVER_S * 1e9 * batches / max(float(loading.sum()), 1.0))
        edits[rank].spent_ns[:, Spent.DATA_LOADING] *= left


def _by_stages(situation: Situation, pace_s: float, asked: int) -> Scenarios:
    """Let a step take at least as long as the model of the loader says that these workers need for its samples."""
    facts = situation.facts
    is_crowded = facts.loader_limit == "cores" and facts.is_crowded_by(asked)
    if is_crowded and facts.loader_best_gain is not None:
        # They wait for a core as the training does now, which the model does not count: its gain holds, not its time.
        pace_s = max(pace_s, situation.step_s / max(facts.loader_best_gain, 1.0))

    def apply(edits: Edits, factor: float) -> float:
        _hand_over_only(situation, edits)
        return pace_s * factor

    return Scenarios(
        apply=apply,
        # Workers share memory bandwidth and storage, and with more of them than cores, also the cores.
        likely=1.1 if is_crowded else 1.0,
        worst=1.7 if is_crowded else 1.3,
        best=0.9,
        how=f"by the stages of its samples, {asked} workers make a step's batches in {pace_s * 1e3:.1f} ms",
        assumptions=("a sample takes its computing and its waiting, and workers that compute need cores",),
        frees_pace=True,
    )


def _fewer_workers(situation: Situation, asked: int) -> Scenarios | str:
    """Return what fewer workers than now do where those keep up: at best they leave cores to the training."""
    if situation.spent_s(Spent.DATA_LOADING) <= 0:
        return "the trace has no data loader time"
    now = situation.facts.loader_workers or 0

    def apply(edits: Edits, factor: float) -> None:
        for edit in edits.values():
            edit.spent_ns[:, Spent.DATA_LOADING] *= factor

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=now / asked,
        best=SAVED_BY_FEWER,
        how=f"{asked} workers make batches no faster than {now}",
        assumptions=("fewer workers save at most 10 % of the waits, a prior: they leave more of the cores to others",),
    )


def _batch_s(situation: Situation) -> float | str:
    """Return the seconds of work that one step's batches cost one process, on the slowest rank."""
    seen_s = situation.spent_s(Spent.DATA_LOADING)
    if seen_s <= 0:
        return "the trace has no data loader time"
    names = [t.facts.loader_name for t in situation.job.timelines if t.facts and t.facts.loader_name]
    if situation.facts.loader_workers == 0 or any(SINGLE_PROCESS in name for name in names):
        return seen_s
    if situation.facts.loader_workers is None:
        return "the current number of workers is unknown"
    if not situation.pace_s:
        return "the workers keep up, so the trace does not show the cost of a batch"
    return situation.pace_s * situation.facts.loader_workers


def prefetch(situation: Situation, change: Change) -> Scenarios | str:
    del change
    if situation.spent_s(Spent.DATA_LOADING) <= 0:
        return "the trace has no data loader time"

    def apply(edits: Edits, factor: float) -> None:
        for edit in edits.values():
            edit.spent_ns[:, Spent.DATA_LOADING] *= factor

    return Scenarios(
        apply=apply,
        likely=0.9,
        worst=1.0,
        best=0.5,
        how="waits for batches that take unequally long are evened out",
        assumptions=("a few steps do not show how unequal batches are: 10 % of the waits is a prior",),
    )


def pin_memory(situation: Situation, change: Change) -> Scenarios | str:
    """Run pageable copies to the device at the rate of pinned copies; the host still waits for them."""
    del change
    rows = situation.works(GpuWorkKind.PAGEABLE_TO_DEVICE)
    if not sum(len(r) for r in rows.values()):
        return "the trace has no copy from pageable memory"
    pinned = _pinned_rate(situation)

    def apply(edits: Edits, factor: float) -> None:
        for rank, track in situation.tracks.items():
            mine = rows[rank]
            now = (track.end_ns - track.start_ns)[mine].astype(np.float64)
            faster = np.minimum(track.num_bytes[mine] / (pinned * factor) * 1e9, now)
            scale(edits, rank, mine, np.where(now > 0, faster / np.maximum(now, 1.0), 1.0))

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.4,
        best=1.4,
        how=f"copies from pageable memory run at {pinned / 1e9:.0f} GB/s",
        assumptions=("the batches come from the DataLoader: other pageable tensors do not change",),
    )


def _pinned_rate(situation: Situation) -> float:
    """Return the rate of the trace's pinned copies if there are large ones, otherwise a prior."""
    rows = situation.works(GpuWorkKind.COPY_TO_DEVICE)
    best = 0.0
    for rank, track in situation.tracks.items():
        mine = rows[rank][track.num_bytes[rows[rank]] >= 1 << 20]
        if len(mine):
            taken = np.maximum(track.end_ns[mine] - track.start_ns[mine], 1)
            best = max(best, float(np.median(track.num_bytes[mine] / taken)) * 1e9)
    return best or PINNED_BYTES_PER_S


def non_blocking(situation: Situation, change: Change) -> Scenarios | str:
    """Remove the host's waits for copies to the device."""
    del change
    kinds = (GpuWorkKind.COPY_TO_DEVICE, GpuWorkKind.PAGEABLE_TO_DEVICE)
    nodes = {
        rank: np.flatnonzero(
            np.isin(track.node, (TrackNode.SYNC, TrackNode.COPY_SYNC))
            & (track.waits_for >= 0)
            & np.isin(track.work[track.waits_for], kinds)
        )
        for rank, track in situation.tracks.items()
    }
    if not sum(len(n) for n in nodes.values()):
        return "the host does not wait for any copy to the device"

    def apply(edits: Edits, factor: float) -> None:
        for rank, found in nodes.items():
            edits[rank].is_waiting[found[: round(len(found) * factor)]] = False

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.0,
        best=1.0,
        how="the host does not wait for copies to the device",
        assumptions=("the copied tensors are in pinned memory",),
    )


def epoch_starts(situation: Situation, change: Change) -> str:
    del situation, change
    return "a recording of a few steps does not contain the start of an epoch"


MODELS = {
    "dataloader-workers": workers,
    "dataloader-prefetch": prefetch,
    "dataloader-pin-memory": pin_memory,
    "non-blocking-copies": non_blocking,
    "dataloader-persistent-workers": epoch_starts,
    "dataloader-fork-server": epoch_starts,
}
