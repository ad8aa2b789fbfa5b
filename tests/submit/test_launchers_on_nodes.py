"""Every launcher forms one job of the two nodes of a real Slurm: the ranks, their nodes, and where they meet.

deepspeed and mpirun are stand-ins that start ranks as the real ones do, from the arguments that these take: deepspeed
0.19.8's runner with --no_ssh, and Open MPI in an allocation.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.slurm import SlurmLab
from tests.submit.test_slurm import submit, waited_for

pytestmark = pytest.mark.usefixtures("warm")

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
WARM_PYTHON = "WARM-PYTHON"  # the lab's Python, which is known only once the lab runs
# A rank: it says who it is. One write a line, so that no lines of several ranks mix.
RANK = f"""\
import json, os, sys
seen = {{name: os.environ.get(name) for name in {NAMES}}}
seen |= {{"node": os.environ["SLURMD_NODENAME"], "args": sys.argv[1:]}}
seen["cpus"] = os.environ.get("SLURM_CPUS_PER_TASK")
os.write(1, (json.dumps(seen) + "\\n").encode())
"""
DEEPSPEED = """\
import argparse, os, subprocess, sys
p = argparse.ArgumentParser()
for name in ("--hostfile", "--master_addr", "--master_port"): p.add_argument(name, required=True)
p.add_argument("--node_rank", type=int, required=True)
p.add_argument("--no_ssh", action="store_true", required=True)
p.add_argument("program", nargs=argparse.REMAINDER)
a = p.parse_args()
slots = [int(line.split(" slots=")[1]) for line in open(a.hostfile)]
hosts = [line.split()[0] for line in open(a.hostfile)]
assert 0 <= a.node_rank < len(hosts) and hosts[a.node_rank] == os.environ["SLURMD_NODENAME"], (hosts, a.node_rank)
first = sum(slots[: a.node_rank])
ranks = [
    subprocess.Popen([sys.executable, *a.program], env={**os.environ, "RANK": str(first + local),
    "LOCAL_RANK": str(local), "WORLD_SIZE": str(sum(slots)), "MASTER_ADDR": a.master_addr,
    "MASTER_PORT": a.master_port})
    for local in range(slots[a.node_rank])
]
sys.exit(max(rank.wait() for rank in ranks))
"""
MPIRUN = """\
import os, subprocess, sys
assert "SLURM_STEP_ID" not in os.environ, "mpirun starts the steps itself"
assert sys.argv[1] == "-n"
code = "export OMPI_COMM_WORLD_RANK=$SLURM_PROCID OMPI_COMM_WORLD_SIZE=$SLURM_NTASKS "
code += 'OMPI_COMM_WORLD_LOCAL_RANK=$SLURM_LOCALID; exec "$@"'
sys.exit(subprocess.call(["srun", "-n", sys.argv[2], "bash", "-c", code, "bash", *sys.argv[3:]]))
"""


@pytest.fixture
def folder(slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rank.py, and with deepspeed and mpirun on the PATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in (("deepspeed", DEEPSPEED), ("mpirun", MPIRUN)):
        (tmp_path / "bin" / name).write_text(f"#!{sys.executable} -S\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{sys.prefix}/bin:{os.environ['PATH']}")
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "command", "cpus"),
    [
        (
            ["--cpus", "4"],
            [WARM_PYTHON, "-m", "accelerate.commands.launch", "--num_processes=4", "rank.py"],
            "4",
        ),
        (["--cpus", "4"], ["deepspeed", "--num_gpus", "2", "rank.py"], "4"),
        (
            ["--sbatch-options=--ntasks-per-node=2 --cpus-per-task=2"],
            ["mpirun", "-n", "4", sys.executable, "rank.py"],
            "2",
        ),
        (["--sbatch-options=--ntasks-per-node=2 --cpus-per-task=2"], [sys.executable, "rank.py"], "2"),
    ],
    ids=["accelerate", "deepspeed", "mpirun", "python"],
)
def test_four_ranks_on_two_nodes_meet_on_the_first(
    slurm: SlurmLab,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    command: list[str],
    cpus: str,
) -> None:
    words = [slurm.python if word == WARM_PYTHON else word for word in command]
    found = submit(monkeypatch, capfd, "--nodes", "2", *options, "--", *words, "--lr", "two  blanks")
    code = waited_for(Path(str(found["exit_code_file"])))
    output = Path(str(found["output"])).read_text()
    assert code == "0\n", output
    ranks = sorted(
        (json.loads(line) for line in output.splitlines() if line.startswith("{")), key=lambda rank: int(rank["RANK"])
    )
    assert [(rank["RANK"], rank["LOCAL_RANK"], rank["WORLD_SIZE"]) for rank in ranks] == [
        *(("0", "0", "4"), ("1", "1", "4"), ("2", "0", "4"), ("3", "1", "4")),
    ]
    assert [rank["node"] for rank in ranks] == ["n1", "n1", "n2", "n2"]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {"n1"}
    assert {rank["MASTER_PORT"] for rank in ranks} == {str(20000 + int(str(found["job"])) % 10000)}
    assert all(rank["args"] == ["--lr", "two  blanks"] for rank in ranks)
    assert {rank["cpus"] for rank in ranks} == {cpus}
