"""Interrupt a training with compressed gradients on the nodes of a slow network, resume it, and compare the bits."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.slow_network.network import SlowNetwork

TRAINING = Path(__file__).parents[1] / "checkpoint" / "training.py"
WIDTH = 512  # gradients of 1 MiB
LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Training:
    start: int  # the step that rank 0 began at
    losses: dict[int, str]  # of rank 0, by step
    digest: str  # of the weights and the optimizer at the end
    num_bytes: int  # that node 0 sent
    took_s: float


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A training without an interruption, and one in two parts."""

    whole: Training
    first: Training
    second: Training

    @property
    def has_same_bits(self) -> bool:
        """Return whether both ended with the same bits; False if the training diverged, which would show nothing."""
        is_finite = all(math.isfinite(float(loss)) for loss in self.whole.losses.values())
        has_same_losses = self.first.losses | self.second.losses == self.whole.losses
        return is_finite and has_same_losses and self.second.digest == self.whole.digest != self.first.digest


def resumed(network: SlowNetwork, folder: Path, words: Sequence[str], *, until: int, interrupted_after: int) -> Resumed:
    """Train to a step at once, and with an interruption; the last checkpoint is a step or none before it."""
    return Resumed(
        whole=train(network, folder / "whole", until, words),
        first=train(network, folder / "parts", interrupted_after, words),
        second=train(network, folder / "parts", until, words),
    )


def train(network: SlowNetwork, folder: Path, num_steps: int, words: Sequence[str]) -> Training:
    """Run one rank on each node to its end; `folder` is that of the checkpoints."""
    name = f"{folder.name}-{num_steps}"
    result, meeting_place = folder.with_name(f"{name}.result"), folder.with_name(f"{name}.meeting-place")
    arguments = [folder, num_steps, result, "--kind", "ddp", "--width", WIDTH, *words]
    command = [sys.executable, str(TRAINING), *map(str, arguments)]
    outputs = [folder.with_name(f"{name}.{rank}.out") for rank in range(len(network.nodes))]
    before, began = network.bytes_sent(0), time.monotonic()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, node in enumerate(network.nodes):
            place = {"RANK": str(rank), "WORLD_SIZE": str(len(network.nodes)), "MEETING_PLACE": str(meeting_place)}
            ranks.append(node.start(command, outputs[rank], **place, OMP_NUM_THREADS="1"))
        codes = [rank.wait(LIMIT_S) for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert not any(codes), "\n".join(output.read_text(errors="replace")[-3000:] for output in outputs)
    lines = [line.split() for line in outputs[0].read_text().splitlines()]
    return Training(
        start=next(int(words[1]) for words in lines if words[0] == "start"),
        losses={int(words[1]): words[2] for words in lines if words[0] == "step"},
        digest=result.read_text(),
        num_bytes=network.bytes_sent(0) - before,
        took_s=time.monotonic() - began,
    )
