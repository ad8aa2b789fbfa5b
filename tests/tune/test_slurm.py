"""`flatout tune` on a real Slurm: each trial a job from a login node, and the whole tuning within one allocation."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.slurm import SlurmLab, free_port

import flatout
from flatout.emit import slurm as emitted
from flatout.launch.slurm import job_name
from flatout.records.change import ChangeSet
from flatout.records.tuning import Tuning

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")
JOB = [str(Path(__file__).parents[1] / "jobs" / "srun_job.py"), "100000", "0.02"]
FEW = ["--trials", "4", "--steps", "5", "--warmup", "5", "--budget", "5m"]
TUNE = [sys.executable, "-m", "flatout", "tune"]


def environment() -> dict[str, str]:
    source = str(Path(flatout.__file__).parents[1])
    more = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": str(free_port())}
    return {**os.environ, "PYTHONPATH": source, **more}


def results(out: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    return [line["result"] for line in lines if line["type"] == "trial"]


def test_each_trial_is_a_job_on_the_same_two_nodes(slurm: SlurmLab, tmp_path: Path) -> None:
    options = ["--launcher=slurm", "--sbatch-options=--nodes=2 --ntasks-per-node=1"]
    done = subprocess.run(
        [*TUNE, *FEW, "--out", str(tmp_path / "out"), *options, "--", "srun", slurm.python, *JOB],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode in (0, 1), done.stderr
    found = results(tmp_path / "out")
    num_trials = len(found)  # baselines and a candidate; a candidate that can no longer win has no second trial
    assert 3 <= num_trials <= 4 and {one["outcome"] for one in found} == {"completed"}, done.stderr
    assert len({one["covariates"]["job"] for one in found} - {None}) == num_trials  # type: ignore[index]
    assert {one["covariates"]["nodes"] for one in found} == {"n[1-2]"}  # type: ignore[index]
    assert json.loads((tmp_path / "out" / "tuning.json").read_text())["machine"]["num_ranks"] == "2"
    jobs = slurm.run("scontrol", "show", "job", "--oneliner").splitlines()
    ours = [job for job in jobs if f"JobName={job_name(tmp_path / 'out')} " in job]  # other tests have jobs, too
    assert len(ours) == num_trials + 1 and all("JobState=COMPLETED" in job and "NodeList=n[1-2]" in job for job in ours)


def test_a_tuning_within_one_allocation(slurm: SlurmLab, tmp_path: Path) -> None:
    """`salloc ... flatout tune -- srun ...`: the local launcher, whose srun takes the trials to the nodes."""
    tune = [slurm.python, *TUNE[1:], *FEW, "--out", str(tmp_path / "out")]
    command = shlex.join([*tune, "--", "srun", slurm.python, *JOB])
    options = ["-N2", "--ntasks-per-node=1"]
    slurm.run("salloc", *options, "sh", "-c", f"{command} || [ $? = 1 ]", env=environment(), timeout_s=280)
    outcomes = [one["outcome"] for one in results(tmp_path / "out")]
    assert 3 <= len(outcomes) <= 4 and set(outcomes) == {"completed"}
    assert json.loads((tmp_path / "out" / "tuning.json").read_text())["machine"]["num_hosts"] == "2"


def test_the_job_file_of_a_tuning_by_jobs_is_such_a_job(slurm: SlurmLab, tmp_path: Path) -> None:
    """Nothing is added on the command line: the nodes, the tasks and the first node are in the file."""
    words = ("srun", "sh", "-c", 'echo "RESULT $SLURM_PROCID $SLURMD_NODENAME $0 $SLURM_JOB_NAME"', "{head_node}:29500")
    made = Tuning(
        command=words,
        changes=ChangeSet(environment={"NCCL_DEBUG": "WARN"}),
        sbatch_options=("--nodes=2", "--ntasks-per-node", "2", "--time=1", "--job-name=a b"),
    )
    script = tmp_path / "tuned.sbatch"
    script.write_text(emitted.emit(made).text)
    output = tmp_path / "output.log"
    slurm.run_batch(f"--output={output}", str(script), env=environment())
    found = sorted(line for line in output.read_text().splitlines() if line.startswith("RESULT"))
    assert found == [f"RESULT {task} n{1 + task // 2} n1:29500 a b" for task in range(4)]
    job = slurm.run("scontrol", "show", "job", "--oneliner").splitlines()[-1]
    assert "TimeLimit=00:01:00" not in job  # a trial has one minute


def test_an_interruption_leaves_no_job(slurm: SlurmLab, tmp_path: Path) -> None:
    tuning = subprocess.Popen(
        [*TUNE, "--out", str(tmp_path / "out"), "--launcher=slurm", "--", "sleep", "600"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    deadline = time.monotonic() + 60
    while not (jobs := slurm.run("squeue", "-h", "-o", "%A %T").split()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert jobs, "no job came"
    time.sleep(1)
    tuning.send_signal(signal.SIGINT)
    _, said = tuning.communicate(timeout=30)
    assert tuning.returncode == 130
    assert "the same command with --out" in said and "Traceback" not in said
    assert slurm.run("squeue", "-h", "-t", "PENDING,RUNNING") == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--launcher=k8s"], "`--launcher` must be local or slurm, but got k8s"),
        (["--sbatch-options=-N2"], "`--sbatch-options` needs `--launcher slurm`"),
        (["--launcher=slurm", "--sbatch-options='"], "cannot be parsed as shell arguments"),
        (["--launcher=slurm", "--sbatch-options=--array=1-2"], "a trial is a single job"),
    ],
)
def test_what_makes_no_sense_is_one_line(slurm: SlurmLab, tmp_path: Path, options: list[str], words: str) -> None:
    done = subprocess.run(
        [*TUNE, *options, "--out", str(tmp_path / "out"), "--", "true"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
