"""One Slurm of 64 nodes with 8 GPUs each for all of these tests; nothing is in its queue when one begins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.schedule.live.lab import GPUS_PER_NODE, NUM_NODES, Lab
from tests.slurm import NEEDED, SlurmLab


@pytest.fixture(scope="session")
def gpu_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("gpu-slurm")
    settings = f"JobCompType=jobcomp/filetxt\nJobCompLoc={folder}/jobcomp.txt\n"
    with SlurmLab(
        folder,
        num_nodes=NUM_NODES,
        gpus_per_node=GPUS_PER_NODE,
        is_apart=False,
        interval_s=1,
        settings=settings,
    ) as lab:
        yield lab


@pytest.fixture
def lab(gpu_slurm: SlurmLab, tmp_path: Path) -> Iterator[Lab]:
    yield Lab(gpu_slurm, tmp_path)
    gpu_slurm.cancel_all()
