"""FSDP2: gathers that are skipped or begin earlier, and reductions of the last pass only."""

from __future__ import annotations

import numpy as np

from flatout.predict.families.ddp import without_early_reductions
from flatout.predict.replay import Edits
from flatout.predict.situation import Scenarios, Situation, remove, scale
from flatout.records.change import Change


def keep_gathered(situation: Situation, change: Change) -> Scenarios | str:
    """Remove the gathers for backward, which are the second half of each step's gathers."""
    del change
    later = {}
    for rank in situation.tracks:
        rows = np.array([row for row, _ in situation.calls(rank, "all_gather")], dtype=np.int64)
        steps = situation.steps_of(rank, rows) if len(rows) else rows
        halves = [rows[steps == step] for step in np.unique(steps)]
        later[rank] = np.concatenate([half[(len(half) + 1) // 2 :] for half in halves]) if halves else rows
    if not sum(len(rows) for rows in later.values()):
        return "the trace has no all-gather"

    def apply(edits: Edits, factor: float) -> None:
        for rank, rows in later.items():
            remove(edits, rank, rows[: round(len(rows) * factor)])

    return Scenarios(
        apply=apply,
        likely=1.0,
        worst=0.5,
        best=1.0,
        how="the second half of each step's all-gathers is skipped",
        assumptions=("each unit is gathered once for forward and once for backward",),
    )


def prefetch(situation: Situation, change: Change) -> Scenarios | str:
    """Start gathers earlier, modelled as shorter gathers."""
    del change
    rows = {
        rank: np.array([row for row, _ in situation.calls(rank, "all_gather")], dtype=np.int64)
        for rank in situation.tracks
    }
    if not sum(len(r) for r in rows.values()):
        return "the trace has no all-gather"

    def apply(edits: Edits, factor: float) -> None:
        for rank, mine in rows.items():
            scale(edits, rank, mine, factor)

    return Scenarios(
        apply=apply,
        likely=0.8,
        worst=1.1,
        best=0.2,
        how="all-gathers begin one or more units earlier",
        assumptions=("a prior: reports range from -7.6 % (SpecForge#566) to a third faster (NeMo Automodel#1711)",),
    )


def no_sync(situation: Situation, change: Change) -> Scenarios | str:
    return without_early_reductions(situation, change, "reduce_scatter")


def hybrid(situation: Situation, change: Change) -> Scenarios | str:
    """Scale gathers and reductions of gradients by the share of their bytes that still passes between hosts.

    Rings over n ranks send (n - 1) / n of all weights for each of two gathers and a reduction; rings over h hosts send
    2 (h - 1) / h of a shard of gradients, which is 1 / r of the weights among r ranks of a host.
    """
    del change
    num_ranks, ranks, num_hosts = situation.facts.num_ranks, situation.facts.ranks_per_host, situation.facts.num_hosts
    if not num_ranks or not ranks or not num_hosts:
        return "the number of hosts and of their ranks is unknown"
    rows = {
        rank: np.array(
            [row for name in ("all_gather", "reduce_scatter") for row, _ in situation.calls(rank, name)], dtype=np.int64
        )
        for rank in situation.tracks
    }
    if not sum(len(of_rank) for of_rank in rows.values()):
        return "the trace has no all-gather"
    left_share = 2 * (num_hosts - 1) / num_hosts / ranks / (3 * (num_ranks - 1) / num_ranks)

    def apply(edits: Edits, factor: float) -> None:
        for rank, of_rank in rows.items():
            scale(edits, rank, of_rank, factor)

    return Scenarios(
        apply=apply,
        likely=(left_share + 1.0) / 2,
        worst=1.0,
        best=left_share,
        how="weights are gathered and gradients scattered within a host; shards of gradients are reduced between hosts",
        assumptions=("the links within a host take between no time, and as much as those between hosts",),
    )


MODELS = {
    "fsdp2-keep-gathered": keep_gathered,
    "fsdp2-prefetch": prefetch,
    "fsdp2-no-sync": no_sync,
    "fsdp2-hybrid": hybrid,
}
