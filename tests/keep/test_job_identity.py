"""Which commands belong to one job, by what the command and the environment say."""

from __future__ import annotations

import os

import pytest

from flatout.keep.job_identity import script_of
from flatout.keep.previous_runs import start_of
from flatout.run.several_nodes import count_nodes, identify, key_of_nodes, spans_nodes

TWO = ("torchrun", "--nnodes=2", "--rdzv-endpoint=n1:29500", "train.py", "--lr=1")


def key(command: tuple[str, ...], **environment: str) -> str | None:
    return key_of_nodes(command, environment)


@pytest.mark.parametrize(
    ("command", "environment", "spans"),
    [
        (("python", "train.py"), {}, False),
        (("torchrun", "--standalone", "train.py"), {}, False),
        (("torchrun", "--nnodes=1", "--rdzv-id=100", "train.py"), {}, False),  # a name, but one node
        (("torchrun", "--standalone", "train.py"), {"FLATOUT_JOB": "mine"}, False),
        (("torchrun", "--standalone", "train.py"), {"SLURM_NTASKS": "2"}, False),  # a sweep: a job for each task
        (("accelerate", "launch", "train.py"), {}, False),
        (("python", "train.py"), {"SLURM_NTASKS": "1"}, False),
        (("python", "train.py"), {"RANK": "0", "WORLD_SIZE": "1"}, False),
        (("torchrun", "--nnodes=2", "train.py"), {}, True),
        (("torchrun", "--nnodes", "1:4", "train.py"), {}, True),
        (("torchrun", "train.py"), {"PET_NNODES": "2"}, True),
        (("accelerate", "launch", "--num_machines", "2", "train.py"), {}, True),
        (("srun", "-N2", "python", "train.py"), {}, True),
        (("python", "train.py"), {"SLURM_NTASKS": "2"}, True),
        (("python", "train.py"), {"RANK": "0", "WORLD_SIZE": "2"}, True),
        (("python", "train.py"), {"FLATOUT_JOB": "mine"}, True),
    ],
)
def test_nodes_belong_together_where_the_command_or_a_name_says_so(
    command: tuple[str, ...], environment: dict[str, str], spans: bool
) -> None:
    assert spans_nodes(command, environment) == spans
    assert (key(command, **environment) is not None) == spans


def test_the_same_job_has_one_key_on_all_its_nodes() -> None:
    with_rank = ("torchrun", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint", "n1:29500", "train.py", "--lr=1")
    assert key(TWO) == key(with_rank), "launchers' other arguments may differ"
    here = os.uname().nodename
    at_home = ("torchrun", "--nnodes=2", f"--rdzv-endpoint={here}.cluster:29500", "train.py", "--lr=1")
    for local in ("localhost", "127.0.0.1", here):
        command = ("torchrun", "--nnodes=2", f"--rdzv-endpoint={local}:29500", "train.py", "--lr=1")
        assert key(command) == key(at_home)
    tasks = [("/opt/a/python", "train.py", "--node_rank", "0"), ("/opt/b/python", "train.py", "--node_rank", "1")]
    assert (
        len({key(task, SLURM_NTASKS="2", SLURM_JOB_ID="7", SLURM_PROCID=str(n)) for n, task in enumerate(tasks)}) == 1
    )


@pytest.mark.parametrize(
    "other",
    [
        ("torchrun", "--nnodes=2", "--rdzv-endpoint=n1:29501", "train.py", "--lr=1"),
        ("torchrun", "--nnodes=2", "--rdzv-endpoint=n3:29500", "train.py", "--lr=1"),
        ("torchrun", "--nnodes=2", "--rdzv-endpoint=n1:29500", "train.py", "--lr=2"),
        ("torchrun", "--nnodes=2", "--rdzv-endpoint=n1:29500", "eval.py", "--lr=1"),
        ("torchrun", "--nnodes=2", "--rdzv-endpoint=n1:29500", "--rdzv-id=100", "train.py", "--lr=1"),
        ("torchrun", "--nnodes=2", "--master-addr=n1", "--master-port=29501", "train.py", "--lr=1"),
    ],
)
def test_another_meeting_point_program_or_name_is_another_job(other: tuple[str, ...]) -> None:
    assert key(TWO) != key(other)
    named = {"FLATOUT_JOB": "mine"}
    if "--rdzv-id=100" not in other:
        assert key(TWO, **named) != key(other, **named), "a name alone is not enough"


def test_a_job_on_one_node_without_a_name_is_a_job_of_its_own() -> None:
    identities = [identify(("python", "train.py"), {}, None, spans=False) for _ in range(2)]
    assert identities[0].job_key != identities[1].job_key


@pytest.mark.parametrize(
    ("environment", "first", "second", "is_same"),
    [
        ({"SLURM_JOB_ID": "7"}, ("python", "a.py", "--start=0"), ("python", "a.py", "--start=1"), True),
        ({"FLATOUT_JOB": "x"}, ("python", "a.py", "--lr=1"), ("python", "a.py", "--lr=2"), True),
        ({"FLATOUT_JOB": "x"}, ("python", "a.py"), ("python", "b.py"), False),
        ({"FLATOUT_JOB": "x"}, ("python", "-c", "one"), ("python", "-c", "two"), False),
        ({"PET_RDZV_ID": "100"}, ("torchrun", "a.py", "--lr=1"), ("torchrun", "a.py", "--lr=2"), False),
        ({"PET_RDZV_ID": "100"}, ("torchrun", "a.py"), ("torchrun", "--nproc-per-node=2", "a.py"), True),
    ],
)
def test_which_starts_continue_one_job(
    environment: dict[str, str], first: tuple[str, ...], second: tuple[str, ...], is_same: bool
) -> None:
    start = start_of(environment, environment.get("PET_RDZV_ID"))
    keys = {identify(command, environment, start, spans=False).job_key for command in (first, second)}
    assert (len(keys) == 1) == is_same


def test_the_script_is_found_in_any_program() -> None:
    assert script_of(("python", "-u", "/home/me/train.py", "--data", "x.py")) == "train.py"
    assert script_of(("python", "-m", "package.train")) == "package.train"
    assert script_of(("sh", "-c", "exec train")) == "exec train"
    assert script_of(("/opt/bin/train", "--fast")) == "train"
    assert script_of(()) == ""


def test_the_most_nodes_of_any_launcher_count() -> None:
    assert count_nodes(("accelerate", "launch", "--num_machines=3", "train.py"), {}) == 3
    assert count_nodes(("torchrun", "--nnodes=2:4", "train.py"), {}) == 4
    assert count_nodes(("python", "train.py"), {}) == 1
