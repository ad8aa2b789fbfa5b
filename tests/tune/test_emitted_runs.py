"""What a tuning leaves for other tools starts the job, from where the tuning was started, with all that was tuned."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.report import tuning_builder as builder

import flatout
from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.catalogue import all_changes
from flatout.change.combine import combine
from flatout.records.change import JobFacts
from flatout.tune.files import write_results

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")

SCRIPT = """
import atexit, os, sys, time, torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import DataLoader, TensorDataset

atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
dist.init_process_group("gloo")
loader = DataLoader(TensorDataset(torch.ones(32, 8)), batch_size=4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
num_reduced = [0]

def counted(state, bucket):
    num_reduced[0] += 1
    return allreduce_hook(state, bucket)

model.register_comm_hook(None, counted)
optimizer = torch.optim.AdamW(model.parameters())
for number, (samples,) in enumerate(loader, 1):
    model(samples).mean().backward()
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
if dist.get_rank() == 0:
    found = loader.num_workers, num_reduced[0], optimizer.defaults["fused"], os.environ["OMP_NUM_THREADS"]
    print("RESULT", *found, *sys.argv[1:], flush=True)
dist.destroy_process_group()
"""
AS_IT_CAME, TUNED = "RESULT 0 8 None 1 --batch 8", "RESULT 1 2 True 2 --batch 16"
JOB = JobFacts(
    num_ranks=2,
    ranks_per_host=2,
    num_hosts=1,
    device="cpu",
    backend="gloo",
    cores_allowed=4.0,
    loader_workers=0,
    passes_per_step=4,
    threads_per_rank=1,
    wrapper="ddp",
    optimizer="AdamW",
    optimizer_is_fused=False,
    optimizer_is_foreach=False,
)
COMMAND = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py", "--batch", "8")
MODULES = {"flatout": "flatout", "torchrun": "torch.distributed.run"}
# What a shell calls is written down, and then started as it was called, by a Python that has imported torch already.
NOTE = """\
#!/bin/sh
printf '%s\\0' "$(basename "$0")" "$@" > "$CALLED/words"
env -0 > "$CALLED/variables"
pwd > "$CALLED/folder"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tuning was started, with its folder below; `flatout` and `torchrun` write down how they are called."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    for name in MODULES:
        (programs / name).write_text(NOTE)
        (programs / name).chmod(0o755)
    monkeypatch.chdir(home)
    monkeypatch.setenv("CALLED", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(flatout.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (home / "train.py").write_text(SCRIPT)
    by_name = {change.name: change for change in all_changes(JOB)}
    names = ("dataloader-workers=1", "ddp-no-sync=4", "optimizer-fused", "threads-cpu=2")
    changes = [by_name[name] for name in names] + list(
        knob_changes(parse_knob("batch/exact={16}:--batch {}"), COMMAND, JOB)
    )
    made = builder.better()
    tuning = msgspec.structs.replace(made.tuning, command=COMMAND, changes=combine(changes, JOB), each=())
    write_results(msgspec.structs.replace(made, tuning=tuning), Path("tuned"), apply=True, command=["flatout", "tune"])
    return home


def result_of(*command: str) -> str:
    called = Path(os.environ["CALLED"])
    subprocess.run(command, check=True, timeout=20)
    name, *words = (called / "words").read_text().split("\0")[:-1]
    variables = dict(each.split("=", 1) for each in (called / "variables").read_text().split("\0") if each)
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"  # what `flatout` calls is not noted
    done = subprocess.run(
        [sys.executable, "-m", MODULES[name], *words],
        env=variables,
        cwd=(called / "folder").read_text().rstrip("\n"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    return line


def test_the_job_starts_with_all_that_was_tuned(home: Path) -> None:
    assert result_of(*COMMAND) == AS_IT_CAME
    assert result_of("flatout", "run", "--config", "tuned/tuned.toml", "--", *COMMAND) == TUNED
    assert result_of("bash", "tuned/files/launch.sh") == TUNED


def test_job_files_start_it_where_its_srun_and_its_folder_are(home: Path) -> None:
    """`srun` of one task, as the script asks for, starts its command; Ray's working folder holds tuned.toml."""
    (home.parent / "bin" / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    (home.parent / "bin" / "srun").chmod(0o755)
    assert result_of("bash", "tuned/files/tuned.sbatch") == TUNED
    shutil.copy("tuned/tuned.toml", "tuned.toml")
    entrypoint = json.loads(Path("tuned/files/ray_job.json").read_text())["entrypoint"]
    assert result_of(*shlex.split(entrypoint)) == TUNED


def test_a_folder_elsewhere_is_named_in_full(home: Path, tmp_path: Path) -> None:
    made = builder.better()
    changes = tuple(change for change in all_changes(JOB) if change.name == "ddp-no-sync=4")
    tuning = msgspec.structs.replace(made.tuning, command=COMMAND, changes=combine(list(changes), JOB), each=())
    lines = write_results(
        msgspec.structs.replace(made, tuning=tuning), tmp_path / "other", apply=True, command=["flatout", "tune"]
    )
    launch = (tmp_path / "other" / "files" / "launch.sh").read_text()
    assert f"flatout run --config {tmp_path}/other/tuned.toml -- torchrun" in " ".join(
        launch.replace("\\\n", "").split()
    )
    assert any(line.startswith("ray_job.json: the job's working folder must have tuned.toml") for line in lines)
