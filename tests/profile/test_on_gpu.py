"""What only a GPU can show: the same results to the last bit, and its own memory counters left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.profile.runs import recorded, run

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

STEPS = 60
JOB = f"""
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), layer, torch.nn.Linear(128, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
losses = []
for _ in range({STEPS}):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(8, 32, 64, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    losses.append(loss.detach())
print("losses", *(loss.item().hex() for loss in losses))
print("random", torch.randn(1, device="cuda").item().hex(), torch.randn(1).item().hex())
print("peak", torch.cuda.max_memory_allocated())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "train.py"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def plain(script: Path) -> list[str]:
    done = run([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(set(lines[0].split())) == STEPS + 1
    return lines


@pytest.mark.parametrize("option", ["--light", "--steps=2"])
def test_losses_and_random_states_are_the_same_to_the_last_bit(
    tmp_path: Path, script: Path, plain: list[str], option: str
) -> None:
    recording, done = recorded(tmp_path / "r", [sys.executable, str(script)], option, "--warmup", "12")
    assert done.stdout.splitlines()[:2] == plain[:2]
    (rank,) = recording.ranks
    assert len(rank.traced_steps) == (0 if option == "--light" else 2)
    assert recording.measured.step_s is not None


def test_the_scripts_own_peak_of_memory_is_the_same(tmp_path: Path, script: Path, plain: list[str]) -> None:
    _, done = recorded(tmp_path / "r", [sys.executable, str(script)], "--light", "--warmup", "12")
    assert done.stdout.splitlines()[2] == plain[2]
