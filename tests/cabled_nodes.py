"""Two machines on this one: namespaces of network and host name, joined by a virtual cable; their disks are shared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.profile.runs import environment
from tests.warm.node import InNamespaces

NAMES = ("node-a", "node-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# As root, or else as root of a user namespace.
UNSHARE = ["unshare", "--net", "--uts", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def sh(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=20)


class Node:
    """A process that holds the namespaces; commands are run in them."""

    def __init__(self, name: str, address: str, link: str, hosts: Path | None) -> None:
        self.holder = subprocess.Popen([*UNSHARE, "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        with self.holder.stdout:
            self.holder.stdout.readline()  # the namespaces are there
        self.address, self.link = address, link
        sh(*self.inside, "hostname", name)
        if hosts is not None:
            sh(*self.inside, "mount", "--bind", hosts, "/etc/hosts")
        sh(*self.inside, "ip", "link", "set", "lo", "up")

    @property
    def inside(self) -> list[str]:
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--mount", *user]

    def connect(self) -> None:
        sh(*self.inside, "ip", "addr", "add", f"{self.address}/24", "dev", self.link)
        sh(*self.inside, "ip", "link", "set", self.link, "up")

    def end(self) -> None:
        self.holder.kill()
        self.holder.wait()

    def start(
        self, command: Sequence[str], output: Path, *, cwd: Path | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        more = {"GLOO_SOCKET_IFNAME": self.link, **variables}
        with output.open("wb") as file:
            return subprocess.Popen(
                command,
                env=environment(**more),
                cwd=cwd,
                preexec_fn=InNamespaces(self.holder.pid),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


class NoNamespacesError(Exception):
    """Raised if this machine does not allow namespaces, or has no `ip`."""


@contextmanager
def cabled_nodes(folder: Path) -> Iterator[list[Node]]:
    """Yield two nodes; `folder` gets their file of host names."""
    hosts = folder / "hosts"
    lines = [f"{address} {name}" for address, name in zip(ADDRESSES, NAMES, strict=True)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    found: list[Node] = []
    try:
        try:
            for number, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True)):
                found.append(Node(name, address, f"cable{number}", hosts))
            sh(*found[0].inside, "ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
            sh(*found[0].inside, "ip", "link", "set", "cable1", "netns", found[1].holder.pid)
            for node in found:
                node.connect()
        except (OSError, subprocess.SubprocessError) as error:
            raise NoNamespacesError(f"needs namespaces and iproute2: {error}") from error
        yield found
    finally:
        for node in found:
            node.end()
