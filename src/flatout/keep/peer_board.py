"""Share status between the nodes of one job: each `flatout run` writes one small file in a shared folder.

In: the ranks of this node, and how its attempts ended. Out: a `PeerStatus` of each other node. A file is replaced
atomically, so readers always see a complete file, on any file system. Nothing waits for an answer; a node whose file no
longer changes counts as lost. The launchers' decisions, such as where the agents meet, are left to them.

Several jobs can share the folder. A job on one node neither writes nor reads here. A job on several nodes reads only
statuses with its own key, and it ends on the word of another node only if the two ran ranks of one job side by side in
the attempt that runs here, or if the launcher here waits for the other one.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.keep.job_identity import JobIdentity
from flatout.secrets import write_private

_REPORT_EVERY_S = 1.0
LOST_AFTER_S = 15.0  # time without a new status; torchrun's agents wait equally long
_HEAR_S = 4.0  # the wait for the reason, on a node whose ranks only lost their peers
_RECENT_S = 60.0


class PeerRank(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one rank of a node."""

    rank: int
    steps: int
    phase: str
    sequences: dict[str, int]  # collectives started, by process group
    # for other ranks, according to its stack; None: not examined, because the rank makes progress
    waits: bool | None = None
    world_size: int = 0  # 0: unknown
    step_s: float | None = None  # median of the last steps; None: unknown, or of an older Flatout
    data_share: float | None = None  # share of them spent waiting for batches
    exchange_step: int | None = None  # of the last exchange of gradients that DDP timed
    exposed_s: float | None = None  # per step: the exposed communication of that exchange
    num_checkpoints: int = 0


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that one node reports."""

    node: str
    job: str | None = None  # None: the job has no name
    node_key: str = ""  # equal on all nodes of the job
    run: str = ""  # a new one for each `flatout run`
    beat: int = 0  # increases while the node's `flatout run` is alive
    attempt: int = 0
    ranks: tuple[PeerRank, ...] = ()
    failure: str | None = None  # how its last attempt failed, unless it only lost its peers
    num_failures: int = 0
    given_up: str | None = None  # why this node does not restart the job
    has_ended: bool = False  # its `flatout run` has ended, in whatever way
    has_reverted: bool = False  # it runs the job without the changes of its tuning from now on
    pid: int = 0  # of its `flatout run`; 0: of an older Flatout, which does not pass requests for traces on
    trace_request: str = ""  # the last request for a trace that it has answered
    trace_problem: str | None = None  # why its ranks were not asked


class _Heard(msgspec.Struct, kw_only=True):
    status: PeerStatus
    at_s: float  # when the status last changed, by this node's clock
    is_new: bool  # the status changed after this node started, so it belongs to the current job
    failed_at_s: float | None = None
    run_at_start: str | None = None  # its run when this node started; None: it has come since
    had_ranks: bool = False  # in any of its statuses
    # Its run, and our attempt, when its ranks and ours were last alive together, as different ranks of one world.
    side_by_side: tuple[str, int] | None = None


class PeerBoard:
    """Writes the status of this node, and reads the status of the others.

    All nodes see `folder`; without it, or for a job on one node, nothing is written or read. `clean` masks secrets. If
    `others_go_on` is set, the launcher is elastic: the job continues without a node that gives up.
    """

    def __init__(
        self,
        folder: Path | None,
        node: str,
        identity: JobIdentity,
        *,
        others_go_on: bool = False,
        clean: Callable[[str], str] = lambda text: text,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder / "nodes" if folder is not None and identity.spans_nodes else None
        self._others_go_on = others_go_on
        self._clean = clean
        self._clock = clock
        name = None if identity.name is None else clean(identity.name)
        self._own = PeerStatus(node=node, job=name, node_key=identity.node_key, run=uuid.uuid4().hex, pid=os.getpid())
        self._awaits_nodes = identity.awaits_nodes
        self._heard: dict[str, _Heard] = {}
        self._namesakes_seen: dict[str, PeerStatus] = {}  # the first status of other jobs with the name of this one
        self._namesakes: set[str] = set()  # the nodes of those that are alive
        self._reported_namesakes: set[str] = set()
        self._next_s = 0.0
        self._lost: set[str] = set()
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(exist_ok=True)
            self._hear()
            self._write()

    @property
    def name(self) -> str:
        """Return the name of this node."""
        return self._own.node

    @property
    def node_key(self) -> str:
        """Return the text that is equal on all nodes of the job."""
        return self._own.node_key

    @property
    def folder(self) -> Path | None:
        """Return the folder of the statuses; None if nothing is shared."""
        return self._folder

    def begins(self, attempt: int) -> None:
        self._report(attempt=attempt, ranks=())

    def fails(self, says: str | None) -> None:
        """Report a failed attempt. `says` is its failure, or None if its ranks only lost their peers."""
        self._report(
            failure=None if says is None else self._clean(says),
            num_failures=self._own.num_failures + (says is not None),
            ranks=(),
        )

    def gives_up(self, why: str) -> None:
        self._report(given_up=self._clean(why), ranks=())

    def reverts(self) -> None:
        """Report that this node restarts the job without the changes of its tuning."""
        self._report(has_reverted=True)

    def answers_trace(self, request: str, problem: str | None) -> None:
        """Report that this node's ranks were asked for a trace, or why they were not."""
        self._report(trace_request=request, trace_problem=None if problem is None else self._clean(problem))

    def ends(self) -> None:
        """Report that this `flatout run` ends, so that its silence is not taken for a loss."""
        self._report(has_ended=True, ranks=())

    def look(self, ranks: Callable[[], Sequence[PeerRank]]) -> None:
        """Write this node's status and read the others', at most once per second."""
        if self._folder is not None and self._clock() >= self._next_s:
            self._next_s = self._clock() + _REPORT_EVERY_S
            self._report(ranks=tuple(ranks()), beat=self._own.beat + 1)
            self._hear()
            self._note_neighbours()

    def others(self) -> list[PeerStatus]:
        """Return the status of the job's other nodes that are alive."""
        now = self._clock()
        return [heard.status for heard in self._heard.values() if heard.is_new and now - heard.at_s < LOST_AFTER_S]

    def newly_lost(self) -> list[str]:
        """Return the nodes that have stopped reporting, each only once; a node that said that it ends is not lost."""
        now = self._clock()
        silent = {
            name
            for name, heard in self._heard.items()
            if heard.is_new and not _said_it_ends(heard.status) and now - heard.at_s >= LOST_AFTER_S
        }
        newly_silent = silent - self._lost
        self._lost = silent
        return sorted(newly_silent)

    def given_up(self) -> str | None:
        """Return why another node does not restart the job, if the job cannot continue without that node."""
        if self._others_go_on:
            return None
        for heard in self._heard.values():
            if heard.is_new and heard.status.given_up is not None and self._is_needed(heard):
                return f"{heard.status.node} does not restart it: {heard.status.given_up}"
        return None

    def reverted_node(self) -> str | None:
        """Return a node of the job that runs it without the changes of its tuning, so that this node has to, too."""
        for heard in self._heard.values():
            if heard.is_new and heard.status.has_reverted and self._is_needed(heard):
                return heard.status.node
        return None

    def new_namesakes(self) -> list[str]:
        """Return the nodes with another job of this job's name, each only once."""
        unreported = self._namesakes - self._reported_namesakes
        self._reported_namesakes |= unreported
        return sorted(unreported)

    def _is_needed(self, heard: _Heard) -> bool:
        """Whether the job here cannot run without that node: the two run ranks together, or this one waits for it.

        If the ranks here make steps in an attempt in which that node never had a rank, they do without it. A
        run that was there before this one and had ranks without it may be one that is just ending.
        """
        if heard.side_by_side == (heard.status.run, self._own.attempt):
            return True
        if any(rank.steps for rank in self._own.ranks):
            return False
        is_of_before = heard.status.run == heard.run_at_start and heard.had_ranks
        ran_beside = heard.side_by_side is not None and heard.side_by_side[0] == heard.status.run
        return ran_beside or (self._awaits_nodes and not is_of_before)

    def _note_neighbours(self) -> None:
        """Note which nodes run ranks of the same world as this one now."""
        now = self._clock()
        for heard in self._heard.values():
            is_alive = heard.is_new and now - heard.at_s < LOST_AFTER_S
            if is_alive and _are_of_one_world(self._own.ranks, heard.status.ranks):
                heard.side_by_side = (heard.status.run, self._own.attempt)

    def reason(self) -> str | None:
        """Return the failure that other nodes reported a moment ago, after waiting a few seconds for it.

        A node that ended its ranks to go back to the job without its changes has none.
        """
        if self._folder is None or not any(heard.is_new for heard in self._heard.values()):
            return None
        deadline = self._clock() + _HEAR_S
        while True:
            self._hear()
            recent = self._recent_failures()
            if recent:
                return "; ".join(f"on {status.node}: {status.failure}" for status in recent)
            if self._clock() >= deadline or self.reverted_node() is not None:
                return None
            time.sleep(0.1)

    def _recent_failures(self) -> list[PeerStatus]:
        now = self._clock()
        recent = []
        for heard in self._heard.values():
            failed_recently = heard.failed_at_s is not None and now - heard.failed_at_s < _RECENT_S
            if heard.status.failure and failed_recently:
                recent.append(heard.status)
        return recent

    def _report(self, **values: object) -> None:
        self._own = msgspec.structs.replace(self._own, **values)
        self._write()

    def _path(self, node: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{re.sub(r'[^A-Za-z0-9._+-]', '_', node)}.json"

    def _write(self) -> None:
        if self._folder is None:
            return
        path = self._path(self._own.node)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with suppress(OSError):  # a full or missing folder must not end the job
            write_private(partial, msgspec.json.encode(self._own))
            partial.replace(path)

    def _hear(self) -> None:
        assert self._folder is not None
        now = self._clock()
        for path in self._folder.glob("[!.]*.json"):
            with suppress(OSError, msgspec.DecodeError):
                status = decode_json(read_bytes(path), type=PeerStatus)
                if status.node == self._own.node:
                    continue
                if status.node_key == self._own.node_key:
                    self._note(status, now)
                elif status.job is not None and status.job == self._own.job:
                    self._note_namesake(status)

    def _note_namesake(self, status: PeerStatus) -> None:
        """Note another job of this job's name, once its status changes: an old status may be of a job that ended."""
        before = self._namesakes_seen.setdefault(status.node, status)
        if before != status:
            self._namesakes.add(status.node)

    def _note(self, status: PeerStatus, now: float) -> None:
        heard = self._heard.get(status.node)
        if heard is None:
            # A status that exists at the start may belong to an earlier job; a status that appears later belongs to
            # this job.
            has_begun = bool(self._next_s)
            run_at_start = None if has_begun else status.run
            heard = _Heard(status=status, at_s=now, is_new=has_begun, run_at_start=run_at_start)
            self._heard[status.node] = heard
        elif heard.status != status:
            has_failed = status.failure is not None and status.num_failures > heard.status.num_failures
            if has_failed:
                heard.failed_at_s = now
            heard.status, heard.at_s, heard.is_new = status, now, True
        heard.had_ranks = heard.had_ranks or bool(status.ranks)


def _said_it_ends(status: PeerStatus) -> bool:
    return status.has_ended or status.given_up is not None


def _are_of_one_world(own: Sequence[PeerRank], theirs: Sequence[PeerRank]) -> bool:
    """Whether two nodes have different ranks of a world of one size: of two jobs, each has a rank 0."""
    if not own or not theirs:
        return False
    own_numbers = {rank.rank for rank in own}
    their_numbers = {rank.rank for rank in theirs}
    sizes = {rank.world_size for rank in (*own, *theirs)}
    return own_numbers.isdisjoint(their_numbers) and len(sizes) == 1
