"""A job under watch behaves as without it: its output, its code, its signals, its handlers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.keep.conftest import ahead

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

SOURCE = str(Path(package.__file__).parents[1])
TRAIN = """\
import os, signal, sys, threading, warnings
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
print("threads", threading.active_count(), flush=True)
print("warning", file=sys.stderr, flush=True)
model = torch.nn.Linear(4, 1)
model.eval(); model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=2, num_workers=%(workers)d):
    loss = model(batch).sum(); optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"{loss.item():.6f}", flush=True)
    print("step", file=sys.stderr, flush=True)
torch.save(model.state_dict(), "model.pt")
own = [one.name for one in threading.enumerate() if "QueueFeeder" not in one.name]  # a loader's may end later
print(sorted(torch.load("model.pt")), own, sys.excepthook is sys.__excepthook__ or "hook")
%(end)s
"""
KEPT = ["-m", "flatout", "run", "--max-restarts=0", "--hang-after=auto", "--ledger=ledger.jsonl", "--"]


def run(tmp_path: Path, program: str, *, is_kept: bool) -> tuple[int, bytes, bytes]:
    folder = tmp_path / "kept"  # tracebacks name it
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / "train.py").write_text(program)
    words = [sys.executable, *(KEPT if is_kept else []), *([sys.executable] if is_kept else []), "train.py"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "PYTHONPATH"))}
    both = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**kept, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    lines = both.stdout.splitlines(keepends=True)
    ours = b"".join(line for line in lines if line.startswith(b"flatout: "))
    return both.returncode, b"".join(line for line in lines if not line.startswith(b"flatout: ")), ours


@pytest.mark.parametrize(
    ("end", "workers"),
    [
        ("", 0),
        ("", 2),
        ("sys.exit(7)", 0),
        ("raise KeyError('what')", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", 0),
        ("os.abort()", 0),
        ("os._exit(9)", 0),
    ],
)
def test_output_in_its_order_and_code_are_the_jobs_own(tmp_path: Path, end: str, workers: int) -> None:
    program = TRAIN % {"end": end, "workers": workers}
    plain = run(tmp_path, program, is_kept=False)
    kept = run(tmp_path, program, is_kept=True)
    # An exception's hook is told to have one before ours; all else is the same to the byte.
    assert kept[:2] == (plain[0], plain[1].replace(b" True\n", b" hook\n"))
    assert bool(kept[2]) == bool(plain[0]), "nothing is said of a job that ends well"
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"train.py", "model.pt", "ledger.jsonl"}


def test_the_users_interruption_reaches_the_job_once_and_ends_it(tmp_path: Path) -> None:
    program = (
        "import time, torch\ncount = 0\n"
        "while True:\n    try:\n        print('up', flush=True)\n        time.sleep(30)\n"
        "    except KeyboardInterrupt:\n"
        "        count += 1\n        print('interrupted', count, flush=True)\n        raise SystemExit(5)\n"
    )
    (tmp_path / "train.py").write_text(program)
    process = subprocess.Popen(
        [sys.executable, *KEPT[:3], "--max-restarts=4", "--", sys.executable, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (5, b"interrupted 1\n", b"")


HANDLER = """\
import os, signal, time
import torch
signal.signal(signal.SIGRTMIN + 8, lambda *_: print('mine', flush=True))
optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
for _ in range(5):
    optimizer.step()
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGRTMIN + 8)
time.sleep(16)
print('end')
"""


@ahead(lambda folder: run(folder, HANDLER, is_kept=True))
def test_a_handler_of_the_scripts_own_for_our_signal_stays(ran: tuple[int, bytes, bytes]) -> None:
    code, out, ours = ran
    assert (code, out) == (0, b"mine\nend\n"), ours
