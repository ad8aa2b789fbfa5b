"""What the nodes of one job tell each other, each `flatout run` in a small file of its own in a folder that all see.

In: the ranks of this node, and what became of its attempts. Out: `Told`, of each other node. A file is replaced as a
whole, so that it is read as one piece on any file system; nothing waits for an answer, and a node that was lost is one
whose file changes no more. It decides nothing that the launchers do: where the agents meet is theirs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

_TELL_EVERY_S = 1.0
LOST_AFTER_S = 15.0  # of silence; torchrun's agents take as long
_HEAR_S = 4.0  # how long a node whose ranks only lost their peers waits for the reason
_RECENT_S = 60.0


class ToldRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    steps: int
    phase: str
    sequences: dict[str, int]  # collectives begun, by process group
    waits: bool | None = None  # for other ranks, as its stack shows; None: nobody has looked, as it gets on


class Told(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    job: str | None = None  # None: not named
    beat: int = 0  # grows while the node's Flatout lives
    attempt: int = 0
    ranks: tuple[ToldRank, ...] = ()
    failure: str | None = None  # what its last attempt ended by, unless that was the loss of its peers
    num_failures: int = 0
    given_up: str | None = None  # why it does not start the job again


class _Heard(msgspec.Struct, kw_only=True):
    told: Told
    at_s: float  # when it last changed, by this node's clock
    is_new: bool  # it has changed since this node began, so it is of this job's nodes
    failed_at_s: float | None = None


class Nodes:
    """`folder` is one that all nodes see; without it nothing is told or heard. `clean` masks what is not to be told.

    `job`: what other jobs tell in the same folder is not for this one.

    `others_go_on`: the launcher is elastic, so that a node which gives up is left out.
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
        self._own = Told(node=node, job=None if job is None else clean(job))
        self._heard: dict[str, _Heard] = {}
        self._next_s = 0.0
        self._lost: set[str] = set()
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(exist_ok=True)
            self._hear()
            self._write()

    def begins(self, attempt: int) -> None:
        self._tell(attempt=attempt, ranks=())

    def fails(self, says: str | None) -> None:
        """`says`: None where its ranks lost their peers only."""
        self._tell(
            failure=None if says is None else self._clean(says),
            num_failures=self._own.num_failures + (says is not None),
        )

    def gives_up(self, why: str) -> None:
        self._tell(given_up=self._clean(why))

    def look(self, ranks: Callable[[], Sequence[ToldRank]]) -> None:
        """Tell and hear, at most once a second."""
        if self._folder is not None and self._clock() >= self._next_s:
            self._next_s = self._clock() + _TELL_EVERY_S
            self._tell(ranks=tuple(ranks()), beat=self._own.beat + 1)
            self._hear()

    def others(self) -> list[Told]:
        """Of this job, as far as they live."""
        now = self._clock()
        return [one.told for one in self._heard.values() if one.is_new and now - one.at_s < LOST_AFTER_S]

    def newly_lost(self) -> list[str]:
        """Nodes that have not been heard of for a while, each told once; a node that has ended by itself is none."""
        now = self._clock()
        silent = {
            name
            for name, one in self._heard.items()
            if one.is_new and one.told.given_up is None and now - one.at_s >= LOST_AFTER_S
        }
        new = silent - self._lost
        self._lost = silent
        return sorted(new)

    def given_up(self) -> str | None:
        """Why another node, without which the job cannot go on, does not start it again."""
        if self._others_go_on:
            return None
        found = [one.told for one in self._heard.values() if one.is_new and one.told.given_up is not None]
        return None if not found else f"{found[0].node} does not start it again: {found[0].given_up}"

    def reason(self) -> str | None:
        """What failed elsewhere a moment ago; waits a few seconds to hear of it."""
        if self._folder is None or not any(one.is_new for one in self._heard.values()):
            return None
        deadline = self._clock() + _HEAR_S
        while True:
            self._hear()
            now = self._clock()
            recent = [
                one.told
                for one in self._heard.values()
                if one.told.failure and one.failed_at_s is not None and now - one.failed_at_s < _RECENT_S
            ]
            if recent or now >= deadline:
                return "; ".join(f"on {told.node}: {told.failure}" for told in recent) or None
            time.sleep(0.1)

    def _tell(self, **values: object) -> None:
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
        with suppress(OSError):  # a folder that is full or gone must not end the job
            partial.write_bytes(msgspec.json.encode(self._own))
            partial.replace(path)

    def _is_of_job(self, told: Told) -> bool:
        """A job without a name is taken for another's part by its folder alone, but not by two on one host."""
        if told.job != self._own.job or told.job is not None:
            return told.job == self._own.job
        return told.node.partition("+")[0] != self._own.node.partition("+")[0]

    def _hear(self) -> None:
        assert self._folder is not None
        now = self._clock()
        for path in self._folder.glob("[!.]*.json"):
            with suppress(OSError, msgspec.DecodeError):
                told = msgspec.json.decode(path.read_bytes(), type=Told)
                if told.node == self._own.node or not self._is_of_job(told):
                    continue
                before = self._heard.get(told.node)
                if before is None:
                    # Found at the start it may be of an earlier job; one that comes later is of this one.
                    self._heard[told.node] = _Heard(told=told, at_s=now, is_new=bool(self._next_s))
                elif before.told != told:
                    has_failed = told.failure is not None and told.num_failures > before.told.num_failures
                    before.failed_at_s = now if has_failed else before.failed_at_s
                    before.told, before.at_s, before.is_new = told, now, True
