"""Which tasks, CPUs and arguments each launcher gets on the nodes of a Slurm job."""

from __future__ import annotations

import subprocess

import pytest
from tests.emit.tunings import tuning

from flatout.emit import slurm
from flatout.emit.slurm_launch import SlurmLaunch, SlurmNodes, slurm_launch


def launched(command: str, *, num_nodes: int = 2, num_gpus: int | None = 8, num_cpus: int | None = 96) -> SlurmLaunch:
    return slurm_launch(command.split(), SlurmNodes(num_nodes=num_nodes, num_gpus=num_gpus, num_cpus=num_cpus))


@pytest.mark.parametrize(
    ("command", "tasks", "cpus"),
    [
        ("torchrun train.py", 1, 96),
        ("accelerate launch train.py", 1, 96),
        ("python -m accelerate.commands.launch train.py", 1, 96),
        ("deepspeed train.py", 1, 96),
        ("mpirun python train.py", 8, 12),
        ("mpirun -n 6 python train.py", 8, 12),
        ("python train.py", 8, 12),
        ("./train.py", 8, 12),
        ("env NCCL_DEBUG=INFO python train.py", 8, 12),
        ("numactl --interleave=all python3.11 -m pkg.train", 8, 12),
        ("bash run.sh train.py", None, 96),
        ("sh -c python", None, 96),
        ("srun python train.py", None, None),  # the user's own tasks
        ("srun torchrun train.py", 1, 96),
        ("./train.sh", None, 96),
    ],
)
def test_tasks_and_cpus_of_two_nodes_with_eight_gpus(command: str, tasks: int | None, cpus: int | None) -> None:
    launch = launched(command)
    assert (launch.tasks_per_node, launch.cpus_per_task) == (tasks, cpus)
    assert launch.has_srun is not command.startswith("mpirun")


@pytest.mark.parametrize(
    "command", ["torchrun train.py", "accelerate launch train.py", "python train.py", "./train.sh"]
)
def test_cpus_that_are_not_given_are_left_to_the_partition(command: str) -> None:
    assert launched(command, num_cpus=None).cpus_per_task is None


def test_a_task_has_at_least_one_cpu() -> None:
    assert launched("python train.py", num_cpus=4).cpus_per_task == 1


def test_torchrun_starts_a_rank_per_gpu_unless_the_user_says_otherwise() -> None:
    assert launched("torchrun train.py").words == ("torchrun", "--nproc-per-node=8", "train.py")
    own = "torchrun --nproc_per_node 4 train.py"
    assert launched(own).words == tuple(own.split())
    assert launched("torchrun train.py", num_gpus=None).words == ("torchrun", "train.py")


def test_accelerate_counts_the_ranks_of_all_nodes() -> None:
    words = launched("accelerate launch --num_processes 8 --machine_rank 0 train.py").words
    assert words[-1] == "train.py"
    assert {"--num_machines=2", "--num_processes=16", "--machine_rank=@NODE_RANK@", "--multi_gpu"} <= set(words)
    assert "8" not in words and "0" not in words
    # Without the number of GPUs, the user's number of processes counts, else Slurm's number of GPUs.
    assert "--num_processes=4" in launched("accelerate launch --num_processes=4 train.py", num_gpus=None).words
    unknown = launched("accelerate launch train.py", num_gpus=None)
    assert "--num_processes=$num_ranks" in unknown.words
    assert any("SLURM_GPUS_ON_NODE" in line for line in unknown.lines)


def test_accelerate_keeps_the_users_kind_of_job_and_needs_no_ssh() -> None:
    words = launched("accelerate launch --use_deepspeed train.py").words
    assert "--multi_gpu" not in words and "--deepspeed_multinode_launcher=standard" in words
    assert "--multi_gpu" not in launched("accelerate launch --config_file a.yaml train.py").words


def test_deepspeeds_own_hosts_are_replaced() -> None:
    launch = launched("deepspeed --hostfile mine -i n1:0,1 --num_gpus 4 --master_port 1 train.py --deepspeed")
    assert launch.words == (
        *("deepspeed", "--hostfile=@HOSTFILE@", "--no_ssh", "--node_rank=@NODE_RANK@"),
        *("--master_addr=$MASTER_ADDR", "--master_port=$MASTER_PORT", "train.py", "--deepspeed"),
    )
    assert launch.notes == ("deepspeed's -i names other hosts: removed",)
    assert 'JOB_SLOTS="8"' in launch.lines[0]
    assert 'JOB_SLOTS="4"' in launched("deepspeed --num_gpus 4 train.py", num_gpus=None).lines[0]
    assert "SLURM_GPUS_ON_NODE" in launched("deepspeed train.py", num_gpus=None).lines[0]


def test_mpirun_gets_a_rank_per_gpu_of_all_nodes_and_keeps_the_users_number() -> None:
    assert launched("mpirun -x A ./solver").words == ("mpirun", "-n", "16", "-x", "A", "./solver")
    assert launched("mpirun -np 4 ./solver", num_gpus=None).words == ("mpirun", "-np", "4", "./solver")
    assert launched("mpirun -np 4 ./solver", num_gpus=None).tasks_per_node == 2
    assert launched("mpirun -np 5 ./solver", num_gpus=None).tasks_per_node == 3, "enough slots"
    assert launched("mpirun ./solver", num_gpus=None).tasks_per_node is None


def test_on_one_node_only_mpirun_changes() -> None:
    for command in ("accelerate launch train.py", "deepspeed train.py", "python train.py"):
        launch = launched(command, num_nodes=1)
        assert launch.words == tuple(command.split()) and launch.tasks_per_node is None
    assert launched("mpirun python train.py", num_nodes=1).has_srun is False


@pytest.mark.parametrize(
    "command", ["accelerate launch train.py", "deepspeed train.py", "mpirun python train.py", "python train.py"]
)
def test_a_script_is_read_by_the_shell_and_the_users_arguments_are_not_expanded(command: str) -> None:
    made = tuning(machine={"num_hosts": "2"}, command=(*command.split(), "$on_node", "--main_process_ip=$MASTER_ADDR"))
    text = slurm.emit(made, gpus_per_node=8, cpus_per_node=96).text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.rstrip().endswith("'$on_node' \\\n    '--main_process_ip=$MASTER_ADDR'") or text.rstrip().endswith(
        "'$on_node' '--main_process_ip=$MASTER_ADDR'"
    )
    assert 'export MASTER_ADDR="$head_node" MASTER_PORT="$rdzv_port"\n' in text
