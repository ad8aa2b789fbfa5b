"""`flatout run --on-regression revert` on two nodes: both go back from the changes at the same checkpoint."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cabled_nodes import ADDRESSES, NAMES, Node, NoNamespacesError, cabled_nodes
from tests.keep.test_tuning_check import JOB, tuned_file

pytestmark = pytest.mark.usefixtures("warm")

LIMIT_S = 240
NUM_STEPS = 700


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    try:
        with cabled_nodes(tmp_path) as found:
            yield found
    except NoNamespacesError as error:
        pytest.skip(str(error))


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2 and namespaces")
def test_both_nodes_go_back_at_one_checkpoint_and_compute_the_same(nodes: list[Node], tmp_path: Path) -> None:
    """The tuning promises steps of 1 ms; those of the job sleep for 20 ms, which is slower than without the changes."""
    config = tuned_file(tmp_path / "tuned.toml", step_s=0.001, num_ranks=2)
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    command = [sys.executable, "-m", "flatout", "run", "--config", str(config), "--on-regression=revert"]
    command += ["--ledger", str(ledgers), "--resume-arg=--init_from=resume"]
    command += [f"--checkpoint={tmp_path / 'out' / 'ckpt.pt'}", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29643"]
    command += [str(JOB), f"--out={tmp_path / 'out'}", f"--steps={NUM_STEPS}", "--save_every=20"]
    outputs = [tmp_path / f"{name}.txt" for name in NAMES]
    started = [node.start(command, output, OMP_NUM_THREADS="1") for node, output in zip(nodes, outputs, strict=True)]
    try:
        codes = [process.wait(LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    said = [output.read_text(errors="replace") for output in outputs]
    assert codes == [0, 0], "\n".join(text[-3000:] for text in said)
    for text in said:
        assert text.count("the job is restarted without the changes") == 1, text[-3000:]
    for ledger in sorted(ledgers.glob("*.jsonl")):
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        events = [line["event"] for line in lines if line["event"] not in ("seconds", "saving")]
        assert events.count("reverted") == 1, (ledger.name, events)
    for rank in (0, 1):
        rows = [line.split() for line in (tmp_path / "out" / f"losses-{rank}.txt").read_text().splitlines()]
        losses: dict[int, set[str]] = {}
        for step, loss in rows:
            losses.setdefault(int(step), set()).add(loss)
        assert sorted(losses) == list(range(NUM_STEPS))
        assert all(len(values) == 1 for values in losses.values()), "steps that were made again have the same losses"
