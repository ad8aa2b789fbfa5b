"""Ask the ranks on the other nodes of a job for a trace. In: a running job and its own ranks. Out: problems by rank.

The nodes share the folder of their ledgers: each `flatout run` reports its ranks there, passes a request on to them,
and answers it in its report (`keep.trace_requests`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.keep.peer_board import LOST_AFTER_S, PeerRank, PeerStatus
from flatout.keep.trace_requests import TraceRequest, ask_nodes, shared_request_path
from flatout.secrets import write_private
from flatout.watch.jobs import RunningJob

ENDED = "it ended before the traced steps did"
_ProblemOf = Callable[["_Rank", tuple[PeerStatus, float] | None], str | None]


class _Rank(msgspec.Struct, frozen=True, kw_only=True):
    status: PeerStatus  # of its node, when the job was asked
    rank: PeerRank
    is_lost: bool  # its node was silent already


class OtherNodes:
    """The ranks on the other nodes of one job, and what their nodes answer to one request."""

    def __init__(self, job: RunningJob, own_ranks: Set[int], world_size: int) -> None:
        self._folder = job.ledger.parent / "nodes" if job.ledger is not None else None
        self._own: PeerStatus | None = None
        self._ranks: dict[int, _Rank] = {}
        self._request: TraceRequest | None = None
        self._ask_problem: str | None = None
        if self._folder is not None:
            self._find(_statuses(self._folder), job.pid, own_ranks, world_size)

    @property
    def ranks(self) -> Set[int]:
        """Return the ranks of other nodes."""
        return self._ranks.keys()

    @property
    def running(self) -> list[PeerRank]:
        """Return what the nodes that are not lost report of their ranks."""
        return [known.rank for known in self._ranks.values() if not known.is_lost]

    def ask(self, folder: Path, first_step: int, num_steps: int) -> None:
        """Write the request, if there are other nodes."""
        if not self._ranks or self._folder is None or self._own is None:
            return
        self._request = TraceRequest(
            id=uuid.uuid4().hex,
            node=self._own.node,
            first_step=first_step,
            num_steps=num_steps,
            folder=str(folder.absolute()),
        )
        try:
            write_private(self._request.marker, b"")
            ask_nodes(shared_request_path(self._folder, self._own.node_key), self._request)
        except OSError as error:
            self._ask_problem = f"{self._folder} cannot be written to: {(error.strerror or str(error)).lower()}"

    def ends(self) -> None:
        """Remove what showed the other nodes the folder."""
        if self._request is not None:
            with suppress(OSError):
                self._request.marker.unlink()

    def problems(self) -> dict[int, str]:
        """Return by rank why no trace will come, as far as the nodes have said it."""
        return self._by_rank(self._problem)

    def unanswered(self) -> dict[int, str]:
        """Return the ranks whose node has not answered, and says nothing else either."""
        return self._by_rank(self._silence)

    def _find(
        self, statuses: Mapping[str, tuple[PeerStatus, float]], pid: int, own_ranks: Set[int], world_size: int
    ) -> None:
        """Find this node by its process and ranks, and the other nodes by the key of the job."""
        own = [status for status, _ in statuses.values() if status.pid == pid and _numbers(status) & own_ranks]
        if len(own) != 1:
            return
        self._own = own[0]
        by_silence = sorted(statuses.values(), key=lambda known: known[1])
        for status, silent_s in by_silence:
            if status.node_key != self._own.node_key or status.has_ended:
                continue
            for rank in status.ranks:
                is_of_this_world = rank.world_size in (0, world_size) and rank.rank not in own_ranks
                if is_of_this_world:
                    known = _Rank(status=status, rank=rank, is_lost=silent_s >= LOST_AFTER_S)
                    self._ranks.setdefault(rank.rank, known)

    def _by_rank(self, problem_of: _ProblemOf) -> dict[int, str]:
        if not self._ranks or self._folder is None:
            return {}
        statuses = _statuses(self._folder)
        problems = {}
        for number, known in self._ranks.items():
            problem = problem_of(known, statuses.get(known.status.node))
            if problem is not None:
                problems[number] = problem
        return problems

    def _problem(self, known: _Rank, now: tuple[PeerStatus, float] | None) -> str | None:
        node = known.status.node
        if self._ask_problem is not None:
            return f"{node} was not asked: {self._ask_problem}"
        if now is None or known.is_lost or now[1] >= LOST_AFTER_S:
            return f"no report from {node} for {LOST_AFTER_S:.0f} s"
        status = now[0]
        if not status.pid:
            return f"the Flatout of {node} is older and does not ask its ranks"
        is_answered = self._request is not None and status.trace_request == self._request.id
        if is_answered and status.trace_problem is not None:
            return f"{node} did not ask it: {status.trace_problem}"
        is_same_attempt = (status.run, status.attempt) == (known.status.run, known.status.attempt)
        if not is_same_attempt or known.rank.rank not in _numbers(status):
            return ENDED
        return None

    def _silence(self, known: _Rank, now: tuple[PeerStatus, float] | None) -> str | None:
        is_answered = self._request is not None and now is not None and now[0].trace_request == self._request.id
        return None if is_answered else f"no answer from {known.status.node}"


def _numbers(status: PeerStatus) -> set[int]:
    return {rank.rank for rank in status.ranks}


def _statuses(folder: Path) -> dict[str, tuple[PeerStatus, float]]:
    """Return the status of each node by its name, and for how many seconds it has been silent.

    The clocks of the nodes and of the file server are assumed to agree within some seconds.
    """
    statuses = {}
    now_s = time.time()
    for path in folder.glob("[!.]*.json"):
        with suppress(OSError, msgspec.DecodeError):
            silent_s = now_s - path.stat().st_mtime
            status = decode_json(read_bytes(path), type=PeerStatus)
            statuses[status.node] = status, silent_s
    return statuses
