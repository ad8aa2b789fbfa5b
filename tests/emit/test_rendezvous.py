"""Jobs of several nodes: files that other tools read say where torchrun's agents meet, and one runs on a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.emit.tunings import changes, tuning
from tests.slurm import SlurmLab

from flatout.emit import kubernetes, ray_job, slurm, torchrun
from flatout.emit.rendezvous import num_nodes

JOB = Path(__file__).parents[1] / "jobs" / "all_reduce_job.py"
ONE_NODE = ("torchrun", "--standalone", "--nproc-per-node", "4", "t.py", "--nnodes", "9")
RENDEZVOUS = ("--nnodes", "1:2", "--node_rank=0", "--rdzv-backend", "c10d", "--rdzv_endpoint=old:1", "--rdzv-id", "5")
TWO_NODES = ("torchrun", *RENDEZVOUS, "--nproc-per-node", "4", "t.py", "--master-port", "mine")
MACHINE = {"num_hosts": "1", "ranks_per_host": "4", "device": "NVIDIA H200"}


def jobset(command: tuple[str, ...], **machine: str) -> dict[str, object]:
    yaml = pytest.importorskip("yaml")
    made = tuning(*changes("nccl-sockets=2x2+8"), command=command, machine={**MACHINE, **machine})
    found = yaml.safe_load(kubernetes.emit(made).text)
    (job,) = found["spec"]["replicatedJobs"]
    return {**found, "job": job["template"]["spec"]}


def container(found: dict[str, object]) -> list[str]:
    return found["job"]["template"]["spec"]["containers"][0]["command"]  # type: ignore[index, no-any-return]


@pytest.mark.parametrize(
    ("command", "hosts", "expected"),
    [
        (ONE_NODE, "1", 1),
        (TWO_NODES, "1", 2),
        (("srun", "torchrun", "--nnodes=4", "t.py"), "2", 4),
        (("torchrun", "--nproc-per-node", "4", "t.py"), "2", 2),
        (("srun", "-N", "2", "python", "t.py", "--nnodes", "9"), "2", 2),
        (("python", "t.py"), "", 1),
        (("torchrun", "--nnodes", "$N", "t.py"), "2", 1),
    ],
)
def test_the_number_of_nodes(command: tuple[str, ...], hosts: str, expected: int) -> None:
    assert num_nodes(tuning(command=command, machine={"num_hosts": hosts})) == expected


@pytest.mark.parametrize("emit", [slurm.emit, torchrun.emit])
def test_one_node_is_left_as_it_is(emit: object) -> None:
    text = emit(tuning(command=ONE_NODE, machine=MACHINE)).text  # type: ignore[operator]
    assert "torchrun --standalone --nproc-per-node 4 t.py --nnodes 9\n" in text
    assert "rdzv" not in text and "--nodes" not in text
    assert container(jobset(ONE_NODE)) == list(ONE_NODE)


def test_a_batch_script_meets_on_the_first_node_that_slurm_gives() -> None:
    lines = slurm.emit(tuning(command=TWO_NODES, machine=MACHINE)).text.splitlines()
    assert lines[1:4] == ["#SBATCH --job-name=flatout-tuned", "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1"]
    call = " ".join("\n".join(lines[lines.index("set -euo pipefail") + 3 :]).replace("\\\n", " ").split())
    assert call == (
        'srun torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint="$head_node:$rdzv_port" --rdzv-id="$SLURM_JOB_ID"'
        " --nproc-per-node 4 t.py --master-port mine"
    )


def test_the_batch_script_runs_on_two_nodes(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Nodes have host names of their own, so that the agents must find which of them is the first."""
    pytest.importorskip("torch")
    launch = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", "gone:1")
    made = tuning(*changes("nccl-sockets=2x2+8"), command=(slurm_lab.python, *launch, str(JOB)))
    (tmp_path / "tuned.sbatch").write_text(slurm.emit(made).text)
    options = [f"--output={tmp_path}/output", "--export=ALL,GLOO_SOCKET_IFNAME=lo,OMP_NUM_THREADS=1"]
    slurm_lab.run_batch(*options, str(tmp_path / "tuned.sbatch"))
    said = sorted(line for line in (tmp_path / "output").read_text().splitlines() if line.startswith("rank "))
    ranks_on = [f"rank {rank} of 2 on {slurm_lab.hostname(rank + 1)}: 2" for rank in (0, 1)]
    swapped = [f"rank {rank} of 2 on {slurm_lab.hostname(2 - rank)}: 2" for rank in (0, 1)]
    assert said in (ranks_on, swapped), (tmp_path / "output").read_text()


def test_a_job_set_meets_in_its_first_pod() -> None:
    found = jobset(TWO_NODES)
    job = found["job"]
    assert (job["completionMode"], job["parallelism"], job["completions"]) == ("Indexed", 2, 2)  # type: ignore[index]
    assert found["spec"]["network"] == {"enableDNSHostnames": True}  # type: ignore[index]
    assert container(found) == [
        "torchrun",
        "--nnodes=2",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        "--master-addr=flatout-tuned-workers-0-0.flatout-tuned",  # JobSet: <jobset>-<replicatedJob>-0-0.<jobset>
        "--master-port=29500",
        *["--nproc-per-node", "4", "t.py", "--master-port", "mine"],
    ]


def test_kubernetes_leaves_the_users_dollars_alone() -> None:
    assert container(jobset(("python", "t.py", "$(HOME) $x"))) == ["python", "t.py", "$$(HOME) $x"]


def test_a_pod_and_a_ray_job_have_no_srun() -> None:
    made = tuning(command=("srun", "-N", "2", "torchrun", "--nnodes=2", "t.py"), machine=MACHINE)
    for emitted in (kubernetes.emit(made), ray_job.emit(made)):
        assert "srun" not in emitted.text.replace("srun -N 2", "")
        assert any(note.startswith("removed from the command: srun -N 2;") for note in emitted.notes)


def test_a_ray_job_asks_for_its_gpus_and_says_what_it_cannot() -> None:
    made = tuning(command=TWO_NODES, machine=MACHINE)
    assert json.loads(ray_job.emit(made).text)["entrypoint_num_gpus"] == 4
    assert "Ray starts the entrypoint on one node: for 2, start its ranks with Ray Train" in ray_job.emit(made).notes
    assert "entrypoint_num_gpus" not in ray_job.emit(tuning(machine={"device": "Xeon", "ranks_per_host": "2"})).text
