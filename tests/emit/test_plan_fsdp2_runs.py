"""The emitted FSDP2 file trains its tiny model on two real processes, in each kind of sharding."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.emit.test_plan_targets import planned

from flatout.emit import plan_fsdp2
from flatout.records.plan import Layout

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")

ENDS_LATER = Path(__file__).parents[1] / "jobs" / "ends_later.py"
LAYOUTS = {
    "fsdp": (Layout(dp=2, zero=3, micro_batch=2, num_micro_batches=2), "fp32"),
    "fsdp, bf16": (Layout(dp=2, zero=3, micro_batch=2, num_micro_batches=2), "bf16"),
    "zero 1, replicated groups": (Layout(dp=2, zero=1, shard=1, micro_batch=2, num_micro_batches=2), "fp32"),
    "zero 1, gathered once per step": (Layout(dp=2, zero=1, micro_batch=2, num_micro_batches=2), "fp32"),
    "ddp": (Layout(dp=2, zero=0, micro_batch=2, num_micro_batches=2), "fp32"),
    "tensor parallel, recomputed": (Layout(tp=2, dp=1, zero=3, micro_batch=2, recompute="full"), "fp32"),
}


def losses(folder: Path, layout: Layout, precision: str) -> list[float]:
    job = planned("llama3-8b", layout, 2, batch=layout.micro_batch * layout.num_micro_batches * layout.dp)
    (emitted,) = plan_fsdp2.emit(msgspec.structs.replace(job, precision=precision))
    path = folder / emitted.path
    path.write_text(emitted.text)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(ENDS_LATER), str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(value) for value in re.findall(r"step \d: loss ([\d.]+)", done.stdout)]


@pytest.mark.parametrize("name", ["fsdp, bf16", "tensor parallel, recomputed"])
def test_the_file_trains_on_two_processes(name: str, tmp_path: Path) -> None:
    found = losses(tmp_path, *LAYOUTS[name])
    assert len(found) == 4
    assert found[-1] < 0.9 * found[0], "it learns its one batch"


def test_sharding_changes_no_loss(tmp_path: Path) -> None:
    """Replicated and sharded ranks take the same steps."""
    replicated = losses(tmp_path, *LAYOUTS["ddp"])
    for name in ("fsdp", "zero 1, replicated groups", "zero 1, gathered once per step"):
        assert losses(tmp_path, *LAYOUTS[name]) == pytest.approx(replicated, abs=2e-3), name


def test_another_number_of_ranks_is_refused_in_one_line(tmp_path: Path) -> None:
    job = planned("llama3-8b", Layout(dp=4, zero=3), 4, batch=4)
    (emitted,) = plan_fsdp2.emit(job)
    path = tmp_path / emitted.path
    path.write_text(emitted.text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode != 0
    assert "dp * tp must equal the number of ranks, but 4 * 1 = 4 and there are 1" in done.stderr
