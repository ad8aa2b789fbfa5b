"""Communication among the ranks of `flatout bench`, over a gloo group, and from the first rank to the command."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import msgspec

from flatout.probe.ceilings.raw import BenchSettings


class RankGroup:
    """All ranks, as seen by one of them. A single rank, or one without torch, communicates with no other."""

    def __init__(self, settings: BenchSettings, torch: Any) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._dist: Any = None
        self._control: Any = None
        if torch is not None and self.size > 1:
            from datetime import timedelta

            self._dist = torch.distributed
            method = f"file://{settings.meeting_file}" if settings.meeting_file else "env://"
            self._dist.init_process_group(
                "gloo", init_method=method, rank=self.rank, world_size=self.size, timeout=timedelta(minutes=5)
            )
            self._control = self._dist.group.WORLD
        self.hosts = self.gathered(socket.gethostname())

    def wait(self) -> None:
        if self._dist is not None:
            self._dist.barrier(group=self._control)

    def gathered(self, value: Any) -> list[Any]:
        if self._dist is None:
            return [value]
        of_ranks = [None] * self.size
        self._dist.all_gather_object(of_ranks, value, group=self._control)
        return of_ranks

    def of_first(self, value: Any) -> Any:
        """Return the first rank's value, on every rank."""
        if self._dist is None:
            return value
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def leave(self) -> None:
        if self._dist is not None:
            self._dist.destroy_process_group()


def tell(what: dict[str, Any]) -> None:
    """Send a line of JSON to the command that started the ranks."""
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()
