"""A slow network on this machine: each node has its own namespaces, and one link of a given rate to the others.

Without a delay, the links are pairs of virtual adapters on one bridge, and the kernel's token bucket (`tbf`) limits
each in both directions. With a delay, they end in `relay.py`, which holds every packet back: the kernels here have no
`netem`. Up to BURST_BYTES pass at full speed, so only larger messages show the rate.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cabled_nodes import Node, NoNamespacesError, sh

BURST_BYTES = 128_000
QUEUE = "50ms"  # packets that would wait longer are dropped, as an adapter drops them
LINK = "eth0"
_RELAY = Path(__file__).with_name("relay.py")


@dataclass(frozen=True)
class SlowNetwork:
    nodes: Sequence[Node]
    bits_per_s: float
    delay_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.bits_per_s / 8

    def bytes_sent(self, number: int) -> int:
        """Return the bytes that a node has put on its link so far, with the headers of its packets."""
        counter = [*self.nodes[number].inside, "cat", "/proc/net/dev"]
        table = subprocess.run(counter, check=True, capture_output=True, text=True, timeout=20).stdout
        row = next(line for line in table.splitlines() if line.strip().startswith(f"{LINK}:"))
        return int(row.partition(":")[2].split()[8])


@contextmanager
def slow_network(
    folder: Path, *, num_nodes: int, bits_per_s: float = 1e9, delay_s: float = 0.0
) -> Iterator[SlowNetwork]:
    """Yield a network of nodes; `folder` gets their file of host names. Raise NoNamespacesError where it cannot be."""
    names = [f"slow-{number}" for number in range(num_nodes)]
    addresses = [f"10.78.0.{number + 1}" for number in range(num_nodes)]
    hosts = folder / "slow-hosts"
    lines = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    nodes: list[Node] = []
    middle: list[Node | subprocess.Popen[bytes]] = []
    try:
        try:
            for name, address in zip(names, addresses, strict=True):
                nodes.append(Node(name, address, LINK, hosts))
            if delay_s:
                middle.append(_relay(nodes, bits_per_s, delay_s))
            else:
                middle.append(_bridge(nodes, bits_per_s))
        except (OSError, subprocess.SubprocessError) as error:
            raise NoNamespacesError(f"needs namespaces, iproute2 and tbf: {_reason(error)}") from error
        yield SlowNetwork(nodes, bits_per_s, delay_s)
    finally:
        for node in [*nodes, *middle]:
            if isinstance(node, Node):
                node.end()
            else:
                node.kill()
                node.wait()


def _bridge(nodes: Sequence[Node], bits_per_s: float) -> Node:
    """Join the nodes by a bridge in namespaces of its own, and limit each of their links."""
    switch = Node("slow-switch", "", "bridge", None)
    inside = switch.inside
    sh(*inside, "ip", "link", "add", "bridge", "type", "bridge")
    sh(*inside, "ip", "link", "set", "bridge", "up")
    for number, node in enumerate(nodes):
        port = f"port{number}"
        sh(*inside, "ip", "link", "add", port, "type", "veth", "peer", "name", LINK, "netns", node.holder.pid)
        sh(*inside, "ip", "link", "set", port, "master", "bridge", "up")
        node.connect()
        for place, adapter in ((inside, port), (node.inside, LINK)):
            limit = ["rate", f"{bits_per_s:.0f}bit", "burst", BURST_BYTES, "latency", QUEUE]
            sh(*place, "tc", "qdisc", "add", "dev", adapter, "root", "tbf", *limit)
    return switch


def _relay(nodes: Sequence[Node], bits_per_s: float, delay_s: float) -> subprocess.Popen[bytes]:
    """Start the relay, which makes the nodes' links, and wait until they are there."""
    ends = [f"{node.holder.pid}={node.address}" for node in nodes]
    command = [sys.executable, "-IS", _RELAY, LINK, str(bits_per_s / 8), str(delay_s), *ends]
    relay = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert relay.stdout is not None
    assert relay.stderr is not None
    with relay.stdout, relay.stderr:
        if relay.stdout.readline() != b"ready\n":
            relay.wait()
            raise OSError(relay.stderr.read().decode(errors="replace").strip().splitlines()[-1])
    for node in nodes:
        sh(*node.inside, "ip", "link", "set", LINK, "mtu", "9000")
        node.connect()
    return relay


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        return str(error.stderr.decode(errors="replace").strip().splitlines()[-1])
    return str(error)
