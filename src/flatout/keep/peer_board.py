"""Share status between the nodes of one job: each `flatout run` writes one small file in a shared folder.

In: the ranks of this node, and how its attempts ended. Out: a `PeerStatus` of each other node. A file is replaced
atomically, so readers always see a complete file, on any file system. Nothing waits for an answer; a node whose file no
longer changes counts as lost. The launchers' decisions, such as where the agents meet, are left to them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

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


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that one node reports."""

    node: str
    job: str | None = None  # None: the job has no name
    beat: int = 0  # increases while the node's `flatout run` is alive
    attempt: int = 0
    ranks: tuple[PeerRank, ...] = ()
    failure: str | None = None  # how its last attempt failed, unless it only lost its peers
    num_failures: int = 0
    given_up: str | None = None  # why this node does not restart the job


class _Heard(msgspec.Struct, kw_only=True):
    status: PeerStatus
    at_s: float  # when the status last changed, by this node's clock
    is_new: bool  # the status changed after this node started, so it belongs to the current job
    failed_at_s: float | None = None


class PeerBoard:
    """Writes the status of this node, and reads the status of the others.

    All nodes see `folder`; without it nothing is written or read. `clean` masks secrets. Statuses of other jobs than
    `job` in the same folder are ignored. If `others_go_on` is set, the launcher is elastic: the job continues without a
    node that gives up.
    """

    def __init__(
        self,
        folder: Path | None,
        node: str,
        *,
        job: str | None = None,
        others_go_on: bool = False,
        clean: Callable[[str], str] = lambda text: text,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = None if folder is None else folder / "nodes"
        self._others_go_on = others_go_on
        self._clean = clean
        self._clock = clock
        self._own = PeerStatus(node=node, job=None if job is None else clean(job))
        self._heard: dict[str, _Heard] = {}
        self._next_s = 0.0
        self._lost: set[str] = set()
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(exist_ok=True)
            self._hear()
            self._write()

    def begins(self, attempt: int) -> None:
        self._report(attempt=attempt, ranks=())

    def fails(self, says: str | None) -> None:
        """Report a failed attempt. `says` is its failure, or None if its ranks only lost their peers."""
        self._report(
            failure=None if says is None else self._clean(says),
            num_failures=self._own.num_failures + (says is not None),
        )

    def gives_up(self, why: str) -> None:
        self._report(given_up=self._clean(why))

    def look(self, ranks: Callable[[], Sequence[PeerRank]]) -> None:
        """Write this node's status and read the others', at most once per second."""
        if self._folder is not None and self._clock() >= self._next_s:
            self._next_s = self._clock() + _REPORT_EVERY_S
            self._report(ranks=tuple(ranks()), beat=self._own.beat + 1)
            self._hear()

    def others(self) -> list[PeerStatus]:
        """Return the status of the job's other nodes that are alive."""
        now = self._clock()
        return [heard.status for heard in self._heard.values() if heard.is_new and now - heard.at_s < LOST_AFTER_S]

    def newly_lost(self) -> list[str]:
        """Return the nodes that have stopped reporting, each only once; a node that has given up is not lost."""
        now = self._clock()
        silent = {
            name
            for name, heard in self._heard.items()
            if heard.is_new and heard.status.given_up is None and now - heard.at_s >= LOST_AFTER_S
        }
        newly_silent = silent - self._lost
        self._lost = silent
        return sorted(newly_silent)

    def given_up(self) -> str | None:
        """Return why another node does not restart the job, if the job cannot continue without that node."""
        if self._others_go_on:
            return None
        for heard in self._heard.values():
            if heard.is_new and heard.status.given_up is not None:
                return f"{heard.status.node} does not restart it: {heard.status.given_up}"
        return None

    def reason(self) -> str | None:
        """Return the failure that other nodes reported a moment ago, after waiting a few seconds for it."""
        if self._folder is None or not any(heard.is_new for heard in self._heard.values()):
            return None
        deadline = self._clock() + _HEAR_S
        while True:
            self._hear()
            recent = self._recent_failures()
            if recent:
                return "; ".join(f"on {status.node}: {status.failure}" for status in recent)
            if self._clock() >= deadline:
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

    def _is_of_job(self, status: PeerStatus) -> bool:
        """Whether a status belongs to this job. Without job names, it does unless it is from the same host."""
        if status.job != self._own.job:
            return False
        if status.job is not None:
            return True
        return status.node.partition("+")[0] != self._own.node.partition("+")[0]

    def _hear(self) -> None:
        assert self._folder is not None
        now = self._clock()
        for path in self._folder.glob("[!.]*.json"):
            with suppress(OSError, msgspec.DecodeError):
                status = msgspec.json.decode(path.read_bytes(), type=PeerStatus)
                if status.node != self._own.node and self._is_of_job(status):
                    self._note(status, now)

    def _note(self, status: PeerStatus, now: float) -> None:
        heard = self._heard.get(status.node)
        if heard is None:
            # A status that exists at the start may belong to an earlier job; a status that appears later belongs to
            # this job.
            self._heard[status.node] = _Heard(status=status, at_s=now, is_new=bool(self._next_s))
        elif heard.status != status:
            has_failed = status.failure is not None and status.num_failures > heard.status.num_failures
            if has_failed:
                heard.failed_at_s = now
            heard.status, heard.at_s, heard.is_new = status, now, True
