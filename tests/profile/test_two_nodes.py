"""One job on two nodes: network and host-name namespaces of this machine, joined by a virtual cable.

The same command is started on each, as on a cluster without a shared launcher, with one folder that both see.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.profile.runs import JOB, environment

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.profile import read_recording

NAMES = ("node-a", "node-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
LIMIT_S = 150
# As root, or else as root of a user namespace.
UNSHARE = ["unshare", "--net", "--uts", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def sh(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=20)


class Node:
    """A process that holds the namespaces; commands are run in them."""

    def __init__(self, number: int, hosts: Path) -> None:
        self.holder = subprocess.Popen([*UNSHARE, "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        with self.holder.stdout:
            self.holder.stdout.readline()  # the namespaces are there
        self.number = number
        sh(*self.inside, "hostname", NAMES[number])
        sh(*self.inside, "mount", "--bind", hosts, "/etc/hosts")
        sh(*self.inside, "ip", "link", "set", "lo", "up")

    @property
    def inside(self) -> list[str]:
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--mount", *user]

    def connect(self) -> None:
        link = f"cable{self.number}"
        sh(*self.inside, "ip", "addr", "add", f"{ADDRESSES[self.number]}/24", "dev", link)
        sh(*self.inside, "ip", "link", "set", link, "up")

    def start(self, command: list[str], output: Path) -> subprocess.Popen[bytes]:
        more = {"GLOO_SOCKET_IFNAME": f"cable{self.number}"}
        with output.open("wb") as file:
            return subprocess.Popen(
                [*self.inside, *command],
                env=environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    hosts = tmp_path / "hosts"
    lines = [f"{address} {name}" for address, name in zip(ADDRESSES, NAMES, strict=True)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    found: list[Node] = []
    try:
        try:
            found += [Node(number, hosts) for number in (0, 1)]
            sh(*found[0].inside, "ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
            sh(*found[0].inside, "ip", "link", "set", "cable1", "netns", found[1].holder.pid)
            for node in found:
                node.connect()
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"needs namespaces and iproute2: {error}")
        yield found
    finally:
        for node in found:
            node.holder.kill()
            node.holder.wait()


def run_on_both(nodes: list[Node], command: list[str], outputs: list[Path]) -> list[int]:
    started = []
    try:
        for node, output in zip(nodes, outputs, strict=True):
            started.append(node.start(command, output))
        return [process.wait(LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2 and namespaces")
def test_one_command_on_two_nodes_makes_one_recording(nodes: list[Node], tmp_path: Path) -> None:
    """Started at the same moment, and with nothing in the environment that says that they belong together."""
    out = tmp_path / "shared"
    command = [sys.executable, "-m", "flatout", "profile", "--out", str(out), "--warmup", "12", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29641"]
    command += [str(JOB), "--steps", "1100"]  # the window begins at most 1000 steps after the plan, across nodes
    outputs = [tmp_path / f"{name}.txt" for name in NAMES]
    codes = run_on_both(nodes, command, outputs)
    if codes != [0, 0] and any(b"RendezvousConnectionError" in output.read_bytes() for output in outputs):
        # torchrun's agents do not always part in peace, with or without Flatout: the one whose store is gone fails.
        shutil.rmtree(out)
        codes = run_on_both(nodes, command, outputs)
    said = "\n".join(output.read_text(errors="replace")[-3000:] for output in outputs)
    assert codes == [0, 0], said
    recording = read_recording(out)
    assert [(rank.rank, rank.hostname) for rank in recording.ranks] == [
        (0, recording.ranks[0].hostname),
        (1, recording.ranks[0].hostname),
        (2, recording.ranks[3].hostname),
        (3, recording.ranks[3].hostname),
    ]
    assert {rank.hostname for rank in recording.ranks} == set(NAMES)
    assert {host.hostname for host in recording.hosts} == set(NAMES)
    assert sorted(run.hostname for run in recording.runs) == sorted(NAMES)
    assert all(run.exit_code == 0 for run in recording.runs)
    steps = {tuple(rank.traced_steps) for rank in recording.ranks}
    assert len(steps) == 1, said
    assert len(steps.pop()) == 3
    assert not recording.problems, recording.problems
    job = diagnose_paths([out]).diagnosis.job
    assert job.num_ranks == 4
    told = [output.read_text(errors="replace") for output in outputs]
    assert sum("4 ranks" in text for text in told) == 1, told
    assert json.loads((out / "recording.json").read_text())["schema"] == "flatout/recording"
