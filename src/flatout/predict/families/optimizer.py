"""The optimizer: few kernels and launches instead of many, and gradients dropped instead of zeroed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.predict.replay import Edits
from flatout.predict.situation import Scenarios, Situation, remove
from flatout.records.change import Change
from flatout.records.track import RankTrack, Spent

# GPU time of fused relative to foreach AdamW on one H200: 4.9 -> 1.7 ms (the catalogue's own measurement).
FUSED_GPU = 0.35
# Share of the host's time in AccumulateGrad that is saved: 2.6 ms per step if gradients are added, 0.6 ms if they are
# stored (traced with a model of 148 tensors).
CALLS_GONE = 0.8


def fused(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _few_kernels(situation, likely=FUSED_GPU, worst=0.8, best=0.2, host=0.15, word="fused")


def foreach(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return _few_kernels(situation, likely=0.6, worst=1.0, best=0.35, host=0.35, word="multi-tensor")


def _few_kernels(
    situation: Situation, *, likely: float, worst: float, best: float, host: float, word: str
) -> Scenarios | str:
    """Replace a step's optimizer kernels by one that takes a share of their time; the host's time shrinks too."""
    rows = {rank: _of_phase(track, Spent.OPTIMIZER) for rank, track in situation.tracks.items()}
    if not sum(len(r) for r in rows.values()):
        return "the trace marks no optimizer step that launches work"
    per_step = max(len(r) for r in rows.values()) / situation.num_steps
    if per_step < 5:
        return f"the optimizer launches {per_step:.0f} kernels per step: it is already fused"

    def apply(edits: Edits, factor: float) -> None:
        for rank, mine in rows.items():
            edit = edits[rank]
            steps = situation.steps_of(rank, mine)
            for step in np.unique(steps):
                of_step = mine[steps == step]
                busy = float(edit.duration_ns[of_step].sum())
                remove(edits, rank, of_step[1:])
                edit.duration_ns[of_step[0]] = busy * factor
            # The remaining host time scales with the uncertain factor too.
            edit.spent_ns[:, Spent.OPTIMIZER] *= min(host * factor / likely, 1.0)

    return Scenarios(
        apply=apply,
        likely=likely,
        worst=worst,
        best=best,
        how=f"{per_step:.0f} optimizer kernels per step become few {word} ones",
        assumptions=(f"a {word} optimizer takes {likely:.0%} of its former GPU time and {host:.0%} of its host time",),
    )


def zero_grad(situation: Situation, change: Change) -> Scenarios | str:
    """Remove the writing of zeros; the gradient of the first pass is stored instead of added."""
    del change
    rows = {rank: _of_phase(track, Spent.ZERO_GRAD) for rank, track in situation.tracks.items()}
    adds = {rank: _of_phase(track, Spent.ACCUMULATE) for rank, track in situation.tracks.items()}
    share = 1.0 / max(situation.facts.passes_per_step or 1, 1)
    if not sum(len(r) for r in rows.values()):
        return "the trace marks no zero_grad that launches work"

    def apply(edits: Edits, factor: float) -> None:
        for rank, mine in rows.items():
            remove(edits, rank, mine[: round(len(mine) * min(factor, 1.0))])
            added = adds[rank]
            remove(edits, rank, added[np.arange(len(added)) < round(len(added) * share * min(factor, 1.0))])
            edits[rank].spent_ns[:, Spent.ZERO_GRAD] *= 1.0 - CALLS_GONE * min(factor, 1.0)
            if len(added):
                edits[rank].spent_ns[:, Spent.ACCUMULATE] *= 1.0 - CALLS_GONE * share * min(factor, 1.0)
            if factor > 1.0:  # a removed launch saves the average cost of launches, not only its own call
                launches = max(int((situation.tracks[rank].launched_by >= 0).sum()), 1)
                gone = (len(mine) + share * len(added)) / launches
                edits[rank].spent_ns[:, Spent.HOST] *= 1.0 - (factor - 1.0) * gone

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.5,
        best=2.0,
        how="the kernels that write zeros are gone, and those that add the first gradient to them",
        assumptions=(f"{CALLS_GONE:.0%} of the host's time for both goes",),
    )


def _of_phase(track: RankTrack, phase: Spent) -> NDArray[np.int64]:
    return np.flatnonzero((track.phase == phase) & (track.launched_by >= 0) & (track.communication < 0))


def eight_bit(situation: Situation, change: Change) -> Scenarios | str:
    """Give the optimizer's kernels the time of reading and writing moments of 8 bits."""
    del change
    rows = {rank: _of_phase(track, Spent.OPTIMIZER) for rank, track in situation.tracks.items()}
    if not sum(len(r) for r in rows.values()):
        return "the trace marks no optimizer kernel"

    def apply(edits: Edits, factor: float) -> None:
        for rank, mine in rows.items():
            edits[rank].duration_ns[mine] *= 0.6**factor

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=-1.0,
        best=2.0,
        how="moments have 8 bits instead of 32",
        assumptions=("a prior: 18 instead of 28 bytes are moved per parameter, and quantising takes a part of it",),
    )


MODELS = {
    "optimizer-8bit": eight_bit,
    "optimizer-fused": fused,
    "optimizer-foreach": foreach,
    "zero-grad-to-none": zero_grad,
}
