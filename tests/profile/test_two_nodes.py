"""One job on two nodes: network and host-name namespaces of this machine, joined by a virtual cable.

The same command is started on each, as on a cluster without a shared launcher, with one folder that both see.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cabled_nodes import ADDRESSES, NAMES, Node, NoNamespacesError, cabled_nodes
from tests.profile.runs import JOB

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.profile import read_recording

pytestmark = pytest.mark.usefixtures("warm")

LIMIT_S = 150


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    try:
        with cabled_nodes(tmp_path) as found:
            yield found
    except NoNamespacesError as error:
        pytest.skip(str(error))


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
    # Across nodes, the window begins 3 s after the plan, or 75 of these steps.
    command += [str(JOB), "--steps", "115", "--pause", "0.04"]
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
