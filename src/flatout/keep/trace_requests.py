"""Pass a request for a trace on to the ranks of this node. In: a file in the folder that the nodes share. Out: answers.

`flatout watch --record` asks the ranks of this host directly, and writes the request for the other nodes of the job.
Each `flatout run` looks for it once per second, which costs one stat. A request is passed on once, to the attempt that
ran when it was written, and only if the folder for the traces is the same directory on both hosts: a hidden file in it,
named after the request, shows that. The answer is part of the status that this node reports to the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.keep.peer_board import PeerBoard
from flatout.secrets import write_private

_LOOK_EVERY_S = 1.0


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for traces of the ranks of all nodes of a job."""

    id: str  # a new one for each request
    node: str  # on which the ranks are asked without this file
    first_step: int
    num_steps: int
    folder: str  # absolute

    @property
    def marker(self) -> Path:
        """Return the file that shows that a host sees the folder in which the traces are awaited."""
        return Path(self.folder) / f".asked-{self.id}"


def shared_request_path(nodes: Path, node_key: str) -> Path:
    """Return the path of the request to all nodes of a job. `nodes` is the folder of their statuses."""
    return nodes / f"{File.TRACE_REQUEST}-{node_key}"


def ask_ranks(attempt: Path, folder: str, first_step: int, num_steps: int) -> None:
    """Ask the ranks whose heartbeats are in the folder `attempt`."""
    request = {"first_step": first_step, "num_steps": num_steps, "folder": folder}
    _replace(attempt / File.TRACE_REQUEST, json.dumps(request))


def ask_nodes(path: Path, request: TraceRequest) -> None:
    """Write the request that the other nodes of the job look for."""
    _replace(path, msgspec.json.encode(request))


class TraceRequests:
    """The requests to the ranks of one node of a job; without a shared folder there are none."""

    def __init__(self, nodes: PeerBoard | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._clock = clock
        folder = nodes.folder if nodes is not None else None
        self._path = shared_request_path(folder, nodes.node_key) if nodes is not None and folder is not None else None
        self._attempt: Path | None = None
        self._seen: tuple[int, int] | None = None
        self._next_s = 0.0

    def look(self, attempt: Path) -> None:
        """Pass on a new request to the ranks of the attempt, and answer it. At most once per second."""
        now = self._clock()
        if self._path is None or self._nodes is None or (attempt == self._attempt and now < self._next_s):
            return
        self._next_s = now + _LOOK_EVERY_S
        written = _written(self._path)
        is_of_before = attempt != self._attempt
        is_new = written is not None and written != self._seen and not is_of_before
        self._attempt, self._seen = attempt, written
        if not is_new:
            return
        with suppress(OSError, msgspec.DecodeError):  # such as a full disk: the watcher says that no answer came
            request = decode_json(read_bytes(self._path), type=TraceRequest)
            if request.node != self._nodes.name:
                self._nodes.answers_trace(request.id, _pass_on(request, attempt))


def _pass_on(request: TraceRequest, attempt: Path) -> str | None:
    """Ask the ranks; return why they cannot be asked."""
    if not request.marker.exists():
        return f"{request.folder} is not there, or not the same folder as on {request.node}"
    if not os.access(request.folder, os.W_OK):
        return f"{request.folder} is read-only there"
    ask_ranks(attempt, request.folder, request.first_step, request.num_steps)
    return None


def _written(path: Path) -> tuple[int, int] | None:
    """Return what changes when the file is replaced; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _replace(path: Path, data: bytes | str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    write_private(partial, data)
    partial.replace(path)
