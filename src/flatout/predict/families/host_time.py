"""Models that scale the host's time by kind of activity."""

from __future__ import annotations

import numpy as np

from flatout.predict.replay import Edits
from flatout.predict.situation import Scenarios, Situation
from flatout.records.track import Spent, TrackNode


def host_time(
    situation: Situation,
    spent: tuple[Spent, ...],
    *,
    likely: float,
    worst: float,
    best: float,
    how: str,
    assumption: str,
    without: tuple[TrackNode, ...] = (),
) -> Scenarios | str:
    """Multiply the host time of these kinds by a ratio; below 1, remove the same share of the waits at `without`."""
    waits = {
        rank: np.flatnonzero(np.isin(track.node, without) & (track.waits_for >= 0))
        for rank, track in situation.tracks.items()
    }
    if sum(situation.spent_s(kind) for kind in spent) <= 0 and not sum(len(nodes) for nodes in waits.values()):
        return f"no host time of the trace is {', '.join(kind.name.lower().replace('_', ' ') for kind in spent)}"

    def apply(edits: Edits, ratio: float) -> None:
        for rank, nodes in waits.items():
            edits[rank].spent_ns[:, list(spent)] *= ratio
            edits[rank].is_waiting[nodes[: round(len(nodes) * (1.0 - min(ratio, 1.0)))]] = False

    return Scenarios(apply=apply, likely=likely, worst=worst, best=best, how=how, assumptions=(assumption,))
