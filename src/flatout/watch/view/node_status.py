"""The ranks of a job on its other nodes. In: the folder of its ledgers, which all nodes see. Out: `RankStatus`es.

Each node's `flatout run` renews a small file there once per second. A node whose file is as old as that of a lost node
(`LOST_AFTER_S`) is shown as lost, with the steps that it reported last. The clocks of the nodes and of the file server
are assumed to agree within some seconds.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.keep.peer_board import LOST_AFTER_S, PeerRank, PeerStatus
from flatout.records.watch import RankState, RankStatus


def ranks_of_other_nodes(ledger: Path, own_ranks: set[int | None]) -> tuple[RankStatus, ...]:
    """Return the ranks that other nodes of the job report. `ledger` is this node's own; `own_ranks` run here."""
    statuses = _statuses(ledger.parent / "nodes")
    own_key = next((status.node_key for status, _ in statuses if _has_rank_of(status, own_ranks)), None)
    now_s = time.time()
    ranks: list[RankStatus] = []
    for status, written_s in statuses:
        if status.node_key != own_key:
            continue
        silent_s = now_s - written_s
        state = _state(status, silent_s)
        others = [rank for rank in status.ranks if rank.rank not in own_ranks]
        ranks += [_rank_status(rank, status.node, state, silent_s) for rank in others]
    return tuple(ranks)


def _statuses(folder: Path) -> list[tuple[PeerStatus, float]]:
    """Return the status of each node, and when it was written."""
    statuses = []
    for path in sorted(folder.glob("[!.]*.json")):
        with suppress(OSError, msgspec.DecodeError):
            written_s = path.stat().st_mtime
            statuses.append((decode_json(read_bytes(path), type=PeerStatus), written_s))
    return statuses


def _has_rank_of(status: PeerStatus, own_ranks: set[int | None]) -> bool:
    return any(rank.rank in own_ranks for rank in status.ranks)


def _state(status: PeerStatus, silent_s: float) -> RankState:
    if status.has_ended:
        return "ended"
    return "lost" if silent_s >= LOST_AFTER_S else "running"


def _rank_status(rank: PeerRank, node: str, state: RankState, silent_s: float) -> RankStatus:
    is_running = state == "running"
    return RankStatus(
        rank=rank.rank,
        host=node,
        pid=None,
        state="starting" if is_running and not rank.steps else state,
        steps=rank.steps,
        step_s=rank.step_s,
        data_share=rank.data_share,
        phase=rank.phase,
        age_s=None if is_running else silent_s,
    )
