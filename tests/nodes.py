"""Machines on this one: each has its own host name and its own loopback address, and all of their names resolve.

Needs root, for namespaces of host name and mounts. The file systems are shared; what a node has for itself is a folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.warm.node import OnNode

_MARK = "FLATOUT_TEST_NODE"


class Node:
    """A machine named `name`. What it runs is found by a variable of its environment, whatever session it is in."""

    def __init__(self, name: str, folder: Path, hosts: Path) -> None:
        self.name, self.folder = name, folder
        self._hosts = hosts
        self._mark = f"{folder}"
        self.log = folder / "log"
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()

    def start(
        self, command: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, output: Path | None = None
    ) -> subprocess.Popen[bytes]:
        with (output or self.log).open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**env, _MARK: self._mark},
                cwd=cwd or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=OnNode(self.name, str(self._hosts)),
            )
        self.processes.append(process)
        return process

    def running(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_ours = process.environ().get(_MARK) == self._mark
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def lose(self) -> None:
        """As if its power went: all at once, and nothing is said."""
        while found := self.running():
            for process in found:  # stopped first, so that none sees another one end
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGSTOP)
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
        for process in self.processes:
            process.wait()

    def said(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith("flatout: ")]


@contextmanager
def two_nodes_in(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two machines that are lost at the end, whatever runs on them then."""
    tried = subprocess.run(["unshare", "--uts", "--mount", "hostname", "n1"], capture_output=True, check=False)
    if tried.returncode or os.getuid():
        pytest.skip("namespaces of a host name are not allowed here")
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.0.11 n1\n127.0.0.12 n2\n")
    nodes = Node("n1", folder / "n1", hosts), Node("n2", folder / "n2", hosts)
    try:
        yield nodes
    finally:
        for node in nodes:
            node.lose()


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with two_nodes_in(tmp_path) as nodes:
        yield nodes
