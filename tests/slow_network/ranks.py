"""Start one rank of a job on each node of a slow network, and read what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.slow_network.network import SlowNetwork

PORT = 29_655


def run_ranks(
    network: SlowNetwork, words: Sequence[object], folder: Path, *, limit_s: float = 150, **variables: str
) -> list[dict[str, Any]]:
    """Run `python WORDS` once on each node as a rank of one job; return the JSON object that each prints last."""
    size = str(len(network.nodes))
    outputs = [folder / f"rank{rank}.txt" for rank in range(len(network.nodes))]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, node in enumerate(network.nodes):
            place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": "1"}
            meeting = {"MASTER_ADDR": network.nodes[0].address, "MASTER_PORT": str(PORT)}
            command = [sys.executable, *map(str, words)]
            started.append(node.start(command, outputs[rank], **place, **meeting, OMP_NUM_THREADS="1", **variables))
        codes = [process.wait(limit_s) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    said = [output.read_text(errors="replace") for output in outputs]
    assert not any(codes), f"{codes}\n" + "\n".join(text[-3000:] for text in said)
    return [json.loads(text.strip().splitlines()[-1]) for text in said]
