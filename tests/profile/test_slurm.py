"""`flatout profile` and Slurm's own commands, on a Slurm that is real but for its nodes' number of machines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from tests.profile.runs import environment, profiling, recorded, torchrun, words
from tests.slurm import SlurmLab, free_port

from flatout.profile import read_recording
from flatout.records.recording import Recording

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")
SCRIPT = str(Path(__file__).parents[1] / "jobs" / "srun_job.py")
JOB = [SCRIPT, "400"]
LONG_JOB = [SCRIPT, "120", "0.05"]  # ranks on several nodes agree three seconds ahead on what to trace
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def ports() -> dict[str, str]:
    return {**LOOPBACK, "MASTER_PORT": str(free_port())}


def check_two_ranks(recording: Recording, hostnames: set[str]) -> None:
    assert [rank.rank for rank in recording.ranks] == [0, 1]
    assert {rank.world_size for rank in recording.ranks} == {2}
    assert {rank.ended_by for rank in recording.ranks} == {"exit"}
    assert {rank.hostname for rank in recording.ranks} == hostnames
    assert recording.ranks[0].traced_steps == recording.ranks[1].traced_steps != ()
    assert recording.problems == ()
    assert sorted(file.name for file in Path(recording.path).glob("rank?.json*")) == ["rank0.json.gz", "rank1.json.gz"]


def in_two(slurm: SlurmLab, recording: Path, *command: str) -> None:
    """Run what records one rank on each of both nodes."""
    done = slurm.done(*command, env=environment(**ports()))
    assert done.returncode == 0, done.stderr
    check_two_ranks(read_recording(recording), {slurm.hostname(1), slurm.hostname(2)})


def profiling_warm(slurm: SlurmLab, out: Path) -> list[str]:
    """`flatout profile` as Slurm starts it."""
    return [slurm.python, *profiling(out, "--warmup", "12")[1:]]


def test_srun_that_makes_its_own_allocation(slurm: SlurmLab, tmp_path: Path, cold: None) -> None:
    """All is started as users start it."""
    command = ["srun", "-N1", "-n2", sys.executable, *JOB]
    recording, done = recorded(tmp_path / "r", command, "--warmup", "12", **ports())
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == ["0", "1"]
    check_two_ranks(recording, {slurm.hostname(1)})


def test_ranks_on_two_nodes_end_in_one_recording(slurm: SlurmLab, tmp_path: Path) -> None:
    command = ["srun", "-N2", "--ntasks-per-node=1", slurm.python, *LONG_JOB]
    recording, _ = recorded(tmp_path / "r", command, "--warmup", "12", **ports())
    hostnames = {slurm.hostname(1), slurm.hostname(2)}
    check_two_ranks(recording, hostnames)
    assert {host.hostname for host in recording.hosts} == hostnames  # and not where nothing ran but srun


def test_srun_within_an_allocation(slurm: SlurmLab, tmp_path: Path) -> None:
    command = shlex.join([*profiling_warm(slurm, tmp_path / "r"), "srun", slurm.python, *LONG_JOB])
    in_two(slurm, tmp_path / "r", "salloc", "-N2", "--ntasks-per-node=1", "sh", "-c", command)


def test_a_flatout_for_each_task_of_two_nodes(slurm: SlurmLab, tmp_path: Path) -> None:
    flatout = profiling_warm(slurm, tmp_path / "r")
    command = ["srun", "-N2", "--ntasks-per-node=1", *flatout, sys.executable, *LONG_JOB]
    in_two(slurm, tmp_path / "r", *command)


def test_a_batch_script_may_record_one_run_after_the_other(slurm: SlurmLab, tmp_path: Path) -> None:
    """Both without --out: a batch script is no step whose tasks share one recording."""
    command = [slurm.python, "-m", "flatout", "profile", "--light", "--", *torchrun("--steps", 30)]
    one = shlex.join(command)
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{one}\n{one}\n")
    options = ["--ntasks=2", f"--chdir={tmp_path}", f"--output={tmp_path}/output"]
    slurm.run_batch(*options, str(tmp_path / "job.sh"), env=environment(**LOOPBACK))
    output = (tmp_path / "output").read_text()
    assert output.count("flatout: recorded 2 ranks, 30 steps") == 2, output
    found = [read_recording(folder) for folder in (tmp_path / "flatout-out").iterdir()]
    assert len(found) == 2, output
    assert {len(recording.runs) for recording in found} == {1}
    assert {rank.hostname for recording in found for rank in recording.ranks} == {slurm.hostname(1)}


@pytest.mark.parametrize(
    ("options", "variables", "why"),
    [
        (["--export=NONE"], {}, "`srun --export=NONE` gives the ranks an environment without"),
        ([], {"SLURM_EXPORT_ENV": "NONE"}, "SLURM_EXPORT_ENV, as `sbatch --export=NONE` sets it"),
    ],
    ids=["option", "variable"],
)
def test_an_environment_that_does_not_reach_the_ranks_is_told(
    slurm: SlurmLab, tmp_path: Path, options: list[str], variables: dict[str, str], why: str
) -> None:
    command = ["srun", *options, sys.executable, "-c", "print('ran')"]
    recording, done = recorded(tmp_path / "r", command, **variables)
    assert done.stdout == "ran\n"
    assert recording.ranks == ()
    assert f"was not loaded into any Python process: {why}" in words(done)[1]
    assert "use `srun --export=ALL`" in words(done)[1]


def test_the_code_of_a_failed_step_is_the_commands(slurm: SlurmLab, tmp_path: Path) -> None:
    _, done = recorded(tmp_path / "r", ["srun", "-n2", sys.executable, "-c", "raise SystemExit(5)"], code=5)
    assert "exited with exit code 5" in done.stderr.lower()
